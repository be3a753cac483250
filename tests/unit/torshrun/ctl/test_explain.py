"""torshctl explain, of records and accounts that the test makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.operations import operation

from torsh_runtime.monitoring.layout import Operation
from torsh_runtime.monitoring.notes import Group, Note
from torshrun.ctl.explain import of_kept, of_running
from torshrun.ctl.places import Unfit
from torshrun.ctl.recorded import Recorded
from torshrun.ctl.stacks import Stands, of_answers
from torshrun.ctl.verdict import JSON_BYTES, as_object, in_words
from torshrun.failure.exported_reports import encode, encode_finding
from torshrun.failure.kinds import Diagnosis, Kind
from torshrun.failure.rank_report import RankReport
from torshrun.failure.root_cause import RootCause
from torshrun.health.accounts import Account, load_newest, save_account, save_finding
from torshrun.health.recordings import Dump, Record
from torshrun.safe_files import Folder

STACK = "MainThread (idle)\n  load (train.py:14)\n  <module> (train.py:30)"


def call(number: int, state: str = "done", at: float = -1.0) -> Operation:
    left = None if state == "running" else at + 0.1
    return operation(number, at, None, left, ranks=2, state=state)


def recorded(since: float) -> Recorded:
    """Two nodes with a rank each, the second of which is in a section."""
    waits = Record([call(0), call(1), call(2, "running", -since)])
    notes = [Note(0, "step", "", -40.0, 12.0, 0), Note(1, "begin", "data\x1b[2J", -31.0, 0.0, 0)]
    late = Record([call(0), call(1)], notes, [Group(0, 2, "", "0-1")])
    dumps = [Dump("r", 0, 0, "n0", 0.0, {0: waits}), Dump("r", 0, 1, "n1", 0.0, {1: late})]
    return Recorded("run r", dumps)


def stands(state: str = "S", ended: str = "") -> dict[int, Stands]:
    return {rank: Stands(f"n{rank}", 7, "", "S", "", STACK) for rank in (0,)} | {
        1: Stands("n1", 8, ended, state, "", STACK)
    }


def test_who_waits_for_whom_in_a_running_job() -> None:
    verdict = of_running(recorded(30.0), stands())
    told = as_object(verdict)
    assert (told["wrong"], told["ranks"], told["state"]) == ("waiting", [1], "running")
    assert (told["operation"]["sequence"], told["waited_seconds"]) == (2, 30.0)
    assert told["where"][0] == {
        "rank": 1,
        "step": 12,
        "section": "data\x1b[2J",
        "section_seconds": 31.0,
        "frame": "load (train.py:14)",
    }
    text = "\n".join(in_words(verdict))
    assert "rank 1: in section data since 31.0 s, step 12, at load (train.py:14)" in text
    assert "\x1b" not in text


def test_who_waits_for_a_message_may_not_be_to_blame() -> None:
    found = recorded(30.0)
    late = found.dumps[1].records[1]
    receive = call(2, "running", -30.0)._replace(operation="recv", root=0, sequence=0)
    waits = late._replace(operations=[*late.operations, receive])
    dumps = [found.dumps[0], found.dumps[1]._replace(records={1: waits})]
    verdict = of_running(found._replace(dumps=dumps), stands())
    assert verdict.certainty == "undecided"


def test_a_message_that_was_never_sent_is_what_it_is_about() -> None:
    found = recorded(30.0)
    receive = call(2, "running", -30.0)._replace(operation="recv", root=1, sequence=0)
    waits = Record([call(0), call(1), receive, call(3)])
    dumps = [found.dumps[0]._replace(records={0: waits}), found.dumps[1]]
    lock = Stands("n1", 8, "", "S", "the lock of f, which python (pid 7) holds", STACK)
    verdict = of_running(found._replace(dumps=dumps), {**stands(), 1: lock})
    assert (verdict.ranks, verdict.certainty) == ((1,), "likely")
    assert verdict.operation is not None
    assert verdict.operation.operation == "recv"
    assert "rank 1 waits for the lock of f, which python (pid 7) holds" in verdict.evidence


def test_a_moment_of_waiting_is_nothing() -> None:
    verdict = of_running(recorded(0.2), stands())
    assert (verdict.wrong, verdict.ranks) == ("nothing", ())
    assert (
        "nothing is wrong: step 12, the last operation began 0.2 s ago" in [*in_words(verdict)][1]
    )


def test_where_nothing_is_recorded_nothing_is_known() -> None:
    job = recorded(0.2)
    dumps = [dump._replace(records={rank: Record() for rank in dump.records}) for dump in job.dumps]
    verdict = of_running(job._replace(dumps=dumps), {})
    assert verdict.wrong == "nothing"
    assert verdict.headline == "nothing is known to be wrong: no operation is recorded"
    assert "--torch-backend torsh takes" in verdict.advice


def test_processes_that_stand_still_or_have_ended() -> None:
    stopped = as_object(of_running(recorded(0.2), stands("T")))
    assert (stopped["wrong"], stopped["ranks"]) == ("stopped", [1])
    assert stopped["operation"]["sequence"] == 2
    dead = as_object(of_running(recorded(0.2), stands("", "killed by SIGKILL")))
    assert (dead["wrong"], dead["headline"]) == ("dead", "rank 1 has ended: killed by SIGKILL")


def test_ranks_that_ended_well_are_no_failure_but_where_others_wait() -> None:
    done = {rank: each._replace(ended="exit code 0") for rank, each in stands().items()}
    assert of_running(recorded(0.2), {**stands(), 0: done[0]}).wrong == "nothing"
    assert of_running(recorded(0.2), {**stands(), 1: done[1]}).headline == (
        "rank 1 has ended: exit code 0"
    )
    both = {rank: each._replace(ended="killed by SIGKILL") for rank, each in stands().items()}
    assert of_running(recorded(0.2), both).headline == "ranks 0-1 have ended: killed by SIGKILL"


def test_ranks_of_a_node_that_has_left_are_named() -> None:
    found = recorded(30.0)
    dead = {0: stands()[0]._replace(ended="exit code 1")}
    verdict = of_running(found._replace(dumps=found.dumps[:1]), dead)
    assert (verdict.ranks, verdict.certainty) == ([0], "undecided")
    assert "  nothing from rank 1: no node that answered has any of these" in [*in_words(verdict)]


def kept(folder: Path, *findings: str) -> None:
    """What two nodes keep of a round: node 1's rank has failed."""
    for node in range(2):
        made = Folder.make(f"{folder}/{node}")
        failed = RankReport(
            rank=node,
            node=node,
            end="failed" if node else "stopped",
            how="exit code 1" if node else "killed by SIGTERM",
            reading=Diagnosis(Kind.EXCEPTION, "why", "do this"),
            said="ValueError: x",
        )
        stacks = {node: STACK}
        whose = ("r", 3, node, f"n{node}", range(node, node + 1))
        save_account(made, Account(*whose, encode([failed]), stacks))
        for finding in findings:
            save_finding(made, 3, node, finding)
        made.close()


def test_what_nodes_have_kept_is_joined(tmp_path: Path) -> None:
    kept(tmp_path / "logs")
    told = as_object(of_kept(tmp_path / "logs"))
    assert (told["state"], told["wrong"], told["ranks"]) == ("ended", "failed", [1])
    assert (told["kind"], told["advice"]) == (Kind.EXCEPTION, "do this")
    assert {each["rank"]: each["frame"] for each in told["where"]}[1] == "load (train.py:14)"


def test_what_the_nodes_found_together_counts(tmp_path: Path) -> None:
    found = RootCause(
        ranks=(), nodes=(1,), certainty="likely", reading=Diagnosis(Kind.NODE_LOST, "w", "a")
    )
    kept(tmp_path / "logs", encode_finding(found))
    told = as_object(of_kept(tmp_path / "logs"))
    assert (told["ranks"], told["nodes"], told["certainty"]) == ([], [1], "likely")


def test_nonsense_is_passed_over(tmp_path: Path) -> None:
    kept(tmp_path / "logs", "{}", "[" * 10000)
    (tmp_path / "logs/0/attempt_3/account_0.json").write_text('{"run_id": []}')
    (tmp_path / "logs/0/attempt_3/account_x.json").write_text("[]")
    infinite = '{"first_rank": Infinity, "ranks": 1, "stacks": {}}'
    (tmp_path / "logs/0/attempt_3/account_7.json").write_text(infinite)
    (tmp_path / "logs/0/attempt_3/account_8.json").symlink_to("nowhere")
    told = as_object(of_kept(tmp_path / "logs"))
    assert told["ranks"] == [1]
    with pytest.raises(Unfit, match="no record of a failure"):
        of_kept(tmp_path / "nowhere")


def test_stacks_of_many_ranks_are_kept_as_far_as_there_is_room(tmp_path: Path) -> None:
    folder = Folder.make(f"{tmp_path}/0")
    try:
        stacks = dict.fromkeys(range(90), "ß" * 9000)
        save_account(folder, Account("r", 0, 0, "n0", range(90), "", stacks))
    finally:
        folder.close()
    (account,) = load_newest(tmp_path).accounts
    assert {len(stack) > 1000 for stack in account.stacks.values()} == {True}


def test_an_answer_of_nonsense_counts_as_not_said() -> None:
    told = '{"host": "n", "hint": "", "ranks": {"0": {"pid": Infinity, "ended": "", "state": "",'
    told += ' "waits": "", "stack": ""}}}'
    assert of_answers("r", {"n": told.encode(), "m": b"[" * 100000}, ()).ranks == {}


def test_the_answer_for_programs_is_bounded() -> None:
    verdict = of_running(recorded(30.0), stands())
    long = "\x01ß" * 4000
    many = verdict._replace(
        headline=long, evidence=[f"{n}{long}" for n in range(99)], silent=[long] * 99, advice=long
    )
    told = as_object(many)
    assert len(json.dumps(told)) <= JSON_BYTES
    assert told["cut"] is True
