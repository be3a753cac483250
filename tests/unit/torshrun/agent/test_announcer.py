"""What people read of it when others write hostile things, or too much goes wrong."""

from __future__ import annotations

import errno
import signal

import pytest

from torsh_runtime.events import Event
from torshrun.agent import machine
from torshrun.agent.announcer import COMPLAINTS, Announcer
from torshrun.config.job import LaunchConfig
from torshrun.config.request import gather
from torshrun.config.resolve import resolve
from torshrun.rendezvous.base import JobOver, Place, RoundClosing, Verdict

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
    place = Place(
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
