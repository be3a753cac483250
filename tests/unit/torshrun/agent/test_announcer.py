"""What people read of it when others write hostile things, or too much goes wrong."""

from __future__ import annotations

import errno
import signal
from dataclasses import replace

import pytest

from torsh_runtime.events import Event, faults
from torshrun.agent import machine
from torshrun.agent.announcer import COMPLAINTS, Announcer
from torshrun.config.job import LaunchConfig
from torshrun.config.request import gather
from torshrun.config.resolve import resolve
from torshrun.failure.exported_reports import encode_finding
from torshrun.failure.kinds import Diagnosis, Kind
from torshrun.failure.root_cause import RootCause
from torshrun.rendezvous.base import JobOver, NodeAssignment, RoundClosing, Verdict

HOSTILE = "\x1b[2Jgone\r\ntorshrun: all is well"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def tell(said: list[str]) -> Announcer:
    options = {"nnodes": "2", "rdzv_backend": "tcp", "rdzv_endpoint": "n0", "no_python": "true"}
    settings = gather(options, "true", (), {})
    job = resolve(settings, {}, new_id=lambda: "a name").job
    return Announcer(job, said.append, None)


def test_nothing_that_others_wrote_gets_at_the_terminal(tell: Announcer, said: list[str]) -> None:
    tell.standing_by(HOSTILE)
    tell.decided(RoundClosing(round=0, reason=HOSTILE, failed=True))
    tell.decided(JobOver(Verdict(outcome="failed", code=1, reason=HOSTILE)))
    assert len(said) == 3
    assert all(line.isprintable() for line in said)


def test_descriptors_that_run_out_are_told_once(
    tell: Announcer, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("torshrun.agent.announcer.time.monotonic", lambda: now)
    for _ in range(100):
        tell.out_of_descriptors(OSError(errno.EMFILE, "Too many open files"))
    (line,) = said
    assert "Too many open files" in line
    now += COMPLAINTS
    tell.out_of_descriptors(OSError(errno.EMFILE, "Too many open files"))
    assert len(said) == 2


def test_an_event_says_when_and_where_it_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torshrun.agent.announcer.time.time", lambda: 12.5)
    events: list[Event] = []
    job = LaunchConfig(target="t", run_id="job", nproc_per_node=1)
    tell = Announcer(job, print, events.append)
    place = NodeAssignment(
        round=2,
        restarts=0,
        node_rank=3,
        num_nodes=4,
        first_rank=3,
        world_size=4,
        master_addr="n0",
        master_port=1,
        jax_port=2,
    )
    tell.begin_round(place)
    tell.noticed(signal.SIGUSR1, passed_on=True)
    facts = {"signal": "SIGUSR1"}
    expected = Event(name="notice", time=12.5, run_id="job", node_rank=3, round=2, facts=facts)
    assert events == [expected]


def test_nothing_is_told_after_the_end() -> None:
    events: list[Event] = []
    tell = Announcer(LaunchConfig(target="t"), print, events.append)
    tell.job_finished(machine.Finished(attempt=machine.Attempt(), code=0, outcome="succeeded"))
    tell.noticed(signal.SIGUSR1, passed_on=True)
    assert [event.name for event in events] == ["job_finished"]


# ---- root causes

FINDING = RootCause(
    ranks=(5,),
    certainty="likely",
    reading=Diagnosis(Kind.MISSING, "They waited for rank 5.", "Look there."),
    how="missing, host n2",
    evidence=("rank 5: in no collective",),
)


def place(node_rank: int, num_nodes: int) -> NodeAssignment:
    return NodeAssignment(
        round=1,
        restarts=0,
        node_rank=node_rank,
        num_nodes=num_nodes,
        first_rank=0,
        world_size=num_nodes,
        master_addr="n0",
        master_port=1,
        jax_port=2,
    )


def told_at(node_rank: int, num_nodes: int, finding: str) -> tuple[list[str], list[Event]]:
    said: list[str] = []
    events: list[Event] = []
    options = {"nnodes": f"{num_nodes}", "rdzv_backend": "tcp", "rdzv_endpoint": "n0"}
    settings = gather({**options, "no_python": "true"}, "true", (), {})
    tell = Announcer(resolve(settings, {}, new_id=lambda: "x").job, said.append, events.append)
    tell.begin_round(place(node_rank, num_nodes))
    said.clear()
    verdict = Verdict(outcome="failed", code=1, reason="why", finding=finding)
    tell.decided(JobOver(verdict))
    return said, events


def test_the_root_cause_of_all_nodes_is_told_and_recorded() -> None:
    said, events = told_at(1, 2, encode_finding(FINDING))
    assert said[0].split("\n") == [
        "torshrun: rank 5 most likely failed first: missing, host n2",
        "  They waited for rank 5.",
        "  rank 5: in no collective",
        "  what to do: Look there.",
    ]
    (event,) = events
    assert faults(event) == ()
    assert event.name == "root_cause"
    assert event.round == 1
    assert event.facts["ranks"] == (5,)
    assert event.facts["certainty"] == "likely"
    assert event.facts["hint"] == "They waited for rank 5. Look there."
    assert event.facts["evidence"] == ("rank 5: in no collective",)


def test_of_many_nodes_the_first_has_the_whole_report_and_the_others_say_so() -> None:
    whole, _ = told_at(0, 9, encode_finding(FINDING))
    short, events = told_at(3, 9, encode_finding(FINDING))
    assert len(whole[0].split("\n")) == 4
    assert short[0].split("\n") == [
        "torshrun: rank 5 most likely failed first: missing, host n2",
        "  node 0 has the whole report, each node that of its own ranks",
    ]
    assert [event.name for event in events] == ["root_cause"]


@pytest.mark.parametrize("text", ["", "nonsense", "{}", HOSTILE, "[" * 5000])
def test_what_is_no_finding_is_not_told(text: str) -> None:
    said, events = told_at(0, 2, text)
    assert said == ["torshrun: the job is over (failed): why"]
    assert events == []


def test_hostile_findings_do_not_get_at_the_terminal() -> None:
    reading = Diagnosis(Kind.MISSING, HOSTILE, HOSTILE)
    finding = replace(FINDING, reading=reading, how=HOSTILE, evidence=(HOSTILE,))
    said, _ = told_at(0, 2, encode_finding(finding))
    assert all(line.isprintable() for line in said[0].split("\n"))
    assert len(said[0].split("\n")) == 4


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        (Verdict(outcome="lost", code=69, reason="the store has not answered"), "store"),
        (Verdict(outcome="lost", code=69, reason="n0: Name or service not known"), "network"),
        (Verdict(outcome="failed", code=69, reason="waited 6 s for 2 nodes"), "missing"),
    ],
)
def test_a_job_that_never_began_is_no_ranks_fault(
    said: list[str], verdict: Verdict, kind: str
) -> None:
    events: list[Event] = []
    tell = Announcer(LaunchConfig(target="t"), said.append, events.append)
    tell.decided(JobOver(verdict))
    (event,) = [event for event in events if event.name == "root_cause"]
    assert (event.facts["ranks"], event.facts["nodes"]) == ((), ())
    assert (event.facts["kind"], event.facts["certainty"]) == (kind, "certain")
    assert faults(event) == ()


def test_a_job_that_somebody_stopped_has_no_root_cause(said: list[str]) -> None:
    events: list[Event] = []
    tell = Announcer(LaunchConfig(target="t"), said.append, events.append)
    for outcome in ("stopped", "preempted", "succeeded"):
        tell.decided(JobOver(Verdict(outcome=outcome, code=1, reason="asked to")))
    assert events == []
