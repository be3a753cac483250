"""Who is to blame, from witnesses made up for the purpose."""

from __future__ import annotations

from typing import Any

import pytest

from torshrun.failure.blocked_at import A_FILE, KEYS, BlockedAt
from torshrun.failure.graph import find
from torshrun.failure.kinds import Diagnosis, Kind
from torshrun.failure.numbers import Numbers
from torshrun.failure.rank_report import RankReport, Silent
from torshrun.failure.root_cause import MOST_EVIDENCE, RootCause
from torshrun.failure.suspect import How, Suspect
from torshrun.procfs import UNREAD

IN_ALL_REDUCE = BlockedAt(call="all_reduce", place="train.py:9")
AWAY = BlockedAt(place="load (train.py:5)", line="time.sleep(60)")


def raised(rank: int, kind: Kind = Kind.EXCEPTION, **facts: Any) -> RankReport:
    """A rank that failed by itself."""
    facts = {"how": "exit code 1", "alike": f"{rank}", "said": "KeyError: 1", **facts}
    return RankReport(rank=rank, end="failed", reading=Diagnosis(kind), **facts)


def blames(rank: int, *ranks: int, how: How = "lost", op: str = "", **facts: Any) -> RankReport:
    """A rank that failed because of these, or of somebody."""
    blame = Suspect(how=how, ranks=ranks, op=op, **facts.pop("blame", {}))
    return raised(rank, Kind.PEER_LOST, blame=blame, **facts)


def waits(rank: int, *ranks: int, **facts: Any) -> RankReport:
    return blames(rank, *ranks, how="late", op="all_reduce", **facts)


def differs(rank: int, calls: dict[int, str], **facts: Any) -> RankReport:
    others = [other for other in calls if other != rank]
    return blames(rank, *others, how="mismatch", blame={"calls": calls}, **facts)


def stopped(rank: int, standing: BlockedAt | None = None, **facts: Any) -> RankReport:
    facts = {"how": "stopped", "reading": Diagnosis(Kind.STOPPED), **facts}
    return RankReport(rank=rank, end="stopped", standing=standing, **facts)


def done(rank: int, **facts: Any) -> RankReport:
    return RankReport(rank=rank, end="done", how="exit code 0", **facts)


def found(*witnesses: RankReport, silent: tuple[Silent, ...] = (), hang: str = "") -> RootCause:
    finding = find(witnesses, silent, hang)
    assert finding is not None
    return finding


def verdict(finding: RootCause) -> tuple[tuple[int, ...], str, Kind]:
    return finding.ranks, finding.certainty, finding.reading.kind


def test_nothing_failed() -> None:
    assert find([]) is None
    assert find([done(0), stopped(1)]) is None


# ---- own failures


def test_who_fails_and_blames_nobody_is_the_cause() -> None:
    finding = found(raised(1), blames(0, 1), blames(2), stopped(3))
    assert verdict(finding) == ((1,), "certain", Kind.EXCEPTION)
    assert finding.headline == "rank 1 failed first: exit code 1"


def test_of_two_that_fail_alone_nobody_can_tell() -> None:
    finding = found(raised(1, at=1.0), raised(0, at=1.1), stopped(2))
    assert verdict(finding) == ((0, 1), "undecided", Kind.EXCEPTION)
    assert finding.headline == "undecided between rank 0 and rank 1: exception"


def test_but_if_a_third_points_at_one_of_them_that_one_is_likely() -> None:
    assert verdict(found(raised(1), raised(0), blames(2, 0))) == ((0,), "likely", Kind.EXCEPTION)


def test_those_who_fail_alike_are_named_together() -> None:
    finding = found(*(raised(rank, alike="x", at=3.0 - rank) for rank in range(3)))
    assert verdict(finding) == ((0, 1, 2), "certain", Kind.EXCEPTION)
    assert finding.headline.startswith("ranks 0-2 failed first: exit code 1, first rank 2")


@pytest.mark.parametrize("kind", [Kind.CRASHED, Kind.KILLED, Kind.OUT_OF_MEMORY])
def test_a_crash_explains_an_exception_after_it_and_not_one_before(kind: Kind) -> None:
    crashed = raised(1, kind, at=2.0)
    assert verdict(found(crashed, raised(0, at=2.1))) == ((1,), "likely", kind)
    assert found(crashed, raised(0, at=1.9)).certainty == "undecided"


def test_moments_of_different_nodes_are_not_compared() -> None:
    crashed = raised(1, Kind.CRASHED, at=2000.0, node=1)
    assert verdict(found(crashed, raised(0, at=5.0, node=0)))[:2] == ((1,), "likely")


def test_an_exit_without_a_word_does_not_stand_against_an_exception() -> None:
    silent = raised(0, Kind.EXIT_CODE, at=2.0)
    assert verdict(found(raised(1, at=1.0), silent)) == ((1,), "likely", Kind.EXCEPTION)
    assert found(raised(1, at=3.0), silent).certainty == "undecided"


def test_nobody_is_certain_while_others_are_pointed_at() -> None:
    assert found(raised(1), waits(0, 2), stopped(2)).certainty == "likely"
    assert found(raised(1), silent=(Silent(node=1, name="n1"),)).certainty == "likely"


@pytest.mark.parametrize(
    "facts",
    [
        {"said": "RuntimeError: rank 0 has not written its part"},
        {"said": "TimeoutError: no answer"},
        {"kind": Kind.NO_FILE},
        {"kind": Kind.NETWORK},
        {"kind": Kind.ADDRESS_IN_USE},
        {"kind": Kind.KILLED},
        {"kind": Kind.SHARED_MEMORY},
        {"kind": Kind.CRASHED, "how": "killed by SIGBUS, exit code 135"},
    ],
)
def test_nobody_is_certain_of_what_others_may_be_behind(facts: dict[str, Any]) -> None:
    assert found(raised(1, **facts), blames(0, 1)).certainty == "likely"


def test_what_all_but_one_met_may_come_of_that_one() -> None:
    alike = [raised(rank, alike="x") for rank in (1, 2)]
    assert found(*alike, blames(0, 1)).certainty == "likely"
    assert found(*alike, blames(0, 1), stopped(3)).certainty == "certain"


@pytest.mark.parametrize(
    ("kind", "said", "certainty"),
    [
        (Kind.EXIT_CODE, "", "likely"),  # one may have handled what came of the other
        (Kind.EXIT_CODE, "no data", "certain"),
        (Kind.VERSION, "RuntimeError: rank 0: 0.21, rank 1: 0.19", "undecided"),
        (Kind.VERSION, "RuntimeError: rank 0 has another version", "likely"),
        (Kind.VERSION, "RuntimeError: 0.21 is too old", "certain"),
    ],
)
def test_what_all_ranks_end_with_may_come_of_one(kind: Kind, said: str, certainty: str) -> None:
    alike = [raised(rank, kind, alike="x", said=said) for rank in (0, 1)]
    assert verdict(found(*alike)) == ((0, 1), certainty, kind)


def test_who_was_killed_for_want_of_memory_may_not_have_taken_it() -> None:
    killed = raised(1, Kind.OUT_OF_MEMORY, peak=1000 << 10, how=KILLED)
    assert found(killed, stopped(0, peak=600 << 10)).certainty == "certain"
    assert found(killed, stopped(0, peak=9000 << 10)).certainty == "likely"
    assert found(killed, stopped(0)).certainty == "likely"  # nobody knows what that one had
    assert found(killed, stopped(0, peak=1100 << 10, node=1)).certainty == "certain"
    assert found(killed).certainty == "certain"
    refused = raised(1, Kind.ALLOCATION, peak=100)
    assert found(refused, stopped(0, peak=110)).certainty == "certain"
    assert found(refused, stopped(0, peak=900)).certainty == "likely"


def test_of_ranks_with_as_much_memory_the_kernel_may_kill_any() -> None:
    killed = raised(1, Kind.OUT_OF_MEMORY, peak=900 << 10, how=KILLED)
    finding = found(killed, stopped(0, peak=950 << 10), stopped(2, peak=200 << 10))
    assert verdict(finding) == ((0, 1), "undecided", Kind.OUT_OF_MEMORY)
    assert "rank 0 950 MiB" in finding.reading.why
    child = raised(1, Kind.OUT_OF_MEMORY, peak=900 << 10)  # of which the peak is not told
    assert verdict(found(child, stopped(0, peak=950 << 10)))[:2] == ((1,), "likely")


KILLED = "killed by SIGKILL, exit code 137"


def test_versions_that_differ_are_evidence() -> None:
    old, new = (raised(rank, alike="x", versions=f"torch 2.{rank}") for rank in (0, 1))
    evidence = found(old, new, blames(2, versions="torch 2.1")).evidence
    assert "rank 0: runs torch 2.0" in evidence
    assert "ranks 1-2: runs torch 2.1" in evidence
    assert not any("runs" in line for line in found(new, blames(2, versions="torch 2.1")).evidence)


# ---- chains of blame


def test_blame_is_followed_to_its_end() -> None:
    chain = [blames(0, 1), blames(1, 2), blames(2, 3), done(3)]
    assert verdict(found(*chain)) == ((3,), "likely", Kind.EARLY_EXIT)
    assert verdict(found(*chain[:3], raised(3))) == ((3,), "certain", Kind.EXCEPTION)


def test_a_rank_that_lost_somebody_itself_is_not_the_end_of_a_chain() -> None:
    finding = found(blames(0, 1), waits(1), stopped(2, AWAY))
    assert finding.ranks == (2,)


def test_who_does_not_come_is_named_with_what_the_others_waited_in() -> None:
    finding = found(waits(0, 2), waits(1, 2), stopped(2, AWAY))
    assert verdict(finding) == ((2,), "likely", Kind.MISSING)
    assert finding.reading.why == ("ranks 0-1 waited in all_reduce for rank 2, which did not come.")
    assert "rank 2: in no collective, at load (train.py:5): time.sleep(60)" in finding.evidence


def test_of_those_who_do_not_come_the_one_that_waits_itself_is_not_the_cause() -> None:
    finding = found(waits(0, 1, 2), stopped(1, IN_ALL_REDUCE), stopped(2, AWAY))
    assert verdict(finding) == ((2,), "likely", Kind.MISSING)


def test_who_waits_in_another_collective_disagrees() -> None:
    barrier = stopped(1, BlockedAt(call="barrier", place="t.py:2"))
    assert verdict(found(waits(0, 1), barrier)) == ((0, 1), "undecided", Kind.MISMATCH)
    assert verdict(found(waits(0, 1), waits(2, 1), barrier)) == ((1,), "likely", Kind.MISMATCH)


def test_who_came_too_late_is_named() -> None:
    finding = found(waits(0, 1), waits(2, 1), stopped(1, IN_ALL_REDUCE))
    assert verdict(finding) == ((1,), "likely", Kind.MISSING)


def test_who_was_lost_because_torshrun_stopped_it_is_not_the_cause() -> None:
    others = waits(2, 3), stopped(3, AWAY)
    finding = found(blames(0, 1), stopped(1, IN_ALL_REDUCE, node=1), *others)
    assert finding.ranks == (3,)


def test_who_left_a_group_and_runs_on_is_lost_to_it() -> None:
    assert found(blames(0, 1), stopped(1, AWAY), stopped(2, IN_ALL_REDUCE)).ranks == (1,)


def test_two_that_wait_for_each_other_are_a_circle() -> None:
    assert verdict(found(waits(0, 1), waits(1, 0))) == ((0, 1), "undecided", Kind.DEADLOCK)
    one = waits(0, 1, standing=BlockedAt(call="all_reduce", place="a.py:1"))
    other = waits(1, 0, standing=BlockedAt(call="all_reduce", place="a.py:2"))
    assert verdict(found(one, other)) == ((0, 1), "undecided", Kind.DEADLOCK)


def test_if_both_do_the_same_both_are_at_fault() -> None:
    at = BlockedAt(call="recv", place="a.py:1")
    finding = found(waits(0, 1, standing=at), waits(1, 0, standing=at))
    assert verdict(finding) == ((0, 1), "likely", Kind.DEADLOCK)


def test_in_a_circle_who_is_pointed_at_by_more_is_likely() -> None:
    finding = found(waits(0, 2), waits(1, 2), waits(2, 0))
    assert (finding.ranks, finding.certainty) == ((2,), "likely")


def test_in_circles_who_is_on_all_of_them_is_likely() -> None:
    """Rank 3 went somewhere else, and waits there for all; the others wait for it, over others, and
    more of them for rank 2 than for any other."""
    there = blames(3, 0, 1, 2, 4, 5, how="late", op="all_gather")
    finding = found(waits(0, 1), waits(1, 3), waits(2, 3), there, waits(4, 2), waits(5, 2))
    assert (finding.ranks, finding.certainty) == ((3,), "likely")


def test_a_long_circle_is_undecided() -> None:
    finding = found(*(blames(rank, (rank + 1) % 5, how="late", op="recv") for rank in range(5)))
    assert finding.ranks == (0, 1, 2, 3, 4)
    assert finding.certainty != "certain"


def test_different_calls_in_a_circle_are_a_mismatch() -> None:
    finding = found(waits(0, 1), blames(1, 0, how="late", op="barrier"))
    assert verdict(finding) == ((0, 1), "undecided", Kind.MISMATCH)
    assert "rank 0 called all_reduce, rank 1 called barrier" in finding.reading.why


def test_a_rank_that_was_lost_and_of_which_nothing_is_known_is_of_a_lost_node() -> None:
    finding = found(blames(0, 5), blames(1, 5))
    assert verdict(finding) == ((5,), "likely", Kind.NODE_LOST)
    assert found(waits(0, 5), waits(1, 5)).reading.kind is Kind.MISSING


# ---- early ends


def test_who_ends_well_while_others_need_it_is_the_cause() -> None:
    named = found(done(1), blames(0, 1), stopped(2, IN_ALL_REDUCE))
    assert verdict(named) == ((1,), "likely", Kind.EARLY_EXIT)
    assert verdict(found(done(1), blames(0))) == ((1,), "likely", Kind.EARLY_EXIT)


def test_who_ends_well_is_no_cause_where_another_fails_by_itself() -> None:
    assert verdict(found(done(1), raised(0), blames(2)))[0] == (0,)


# ---- disagreements


def test_two_that_disagree_are_named_with_both_calls() -> None:
    calls = {0: "all_reduce(float32[2])", 1: "all_reduce(float32[3])"}
    finding = found(differs(0, calls), differs(1, calls))
    assert verdict(finding) == ((0, 1), "undecided", Kind.MISMATCH)
    assert all(call in finding.reading.why for call in calls.values())
    assert "rank 0 called all_reduce(float32[2])" in finding.reading.why


def test_of_three_the_one_that_differs_is_likely() -> None:
    one, other = {0: "a()", 2: "b()"}, {1: "a()", 2: "b()"}
    finding = found(differs(0, one), differs(1, other), differs(2, one))
    assert verdict(finding) == ((2,), "likely", Kind.MISMATCH)


def test_of_three_of_whom_two_are_known_nobody_is() -> None:
    calls = {0: "a()", 2: "b()"}
    finding = found(differs(0, calls), differs(1, calls), differs(2, calls))
    assert verdict(finding) == ((0, 2), "undecided", Kind.MISMATCH)


def test_what_ranks_noted_themselves_decides_too() -> None:
    def noted(last: str) -> BlockedAt:
        return BlockedAt(last=last, group=0, sequence=7)

    calls = {0: "a()", 2: "b()"}
    finding = found(
        differs(0, calls, standing=noted("a(4)")),
        differs(1, calls, standing=noted("a(4)")),
        differs(2, calls, standing=noted("b(4)")),
    )
    assert verdict(finding) == ((2,), "likely", Kind.MISMATCH)


def test_all_different_is_undecided() -> None:
    calls = {0: "a()", 1: "b()", 2: "c()"}
    assert verdict(found(differs(0, calls)))[:2] == ((0, 1, 2), "undecided")


def test_who_differs_from_a_reference_is_told_in_its_words() -> None:
    odd = blames(1, 0, how="mismatch", blame={"text": "params[0] has sizes [5, 4]"})
    finding = found(odd, stopped(0), stopped(2))
    assert finding.ranks == (1,)
    assert finding.reading.why == (
        "rank 1 has something different from rank 0: params[0] has sizes [5, 4]."
    )


def test_an_unnamed_mismatch_may_be_anybodys() -> None:
    finding = found(blames(0, how="mismatch"), blames(1), stopped(2))
    assert verdict(finding) == ((0, 1, 2), "undecided", Kind.MISMATCH)


def test_what_torch_noted_names_the_one_that_differs() -> None:
    ranks = [blames(rank, how="mismatch", call=f"f({rank // 2})") for rank in range(3)]
    assert verdict(found(*ranks)) == ((2,), "likely", Kind.MISMATCH)


def test_a_single_rank_that_is_named_is_likely() -> None:
    finding = found(blames(0, 1, how="mismatch", blame={"calls": {1: "no gradient"}}))
    assert verdict(finding)[:2] == ((1,), "likely")


# ---- where ranks stood


def test_who_stands_outside_of_what_others_wait_in_did_not_come() -> None:
    finding = found(blames(0, how="late"), stopped(1, IN_ALL_REDUCE), stopped(2, AWAY))
    assert verdict(finding) == ((2,), "likely", Kind.MISSING)


@pytest.mark.parametrize(
    ("waits_for", "kind"),
    [("a lock", Kind.DEADLOCK), ("a file", Kind.HUNG), ("", Kind.MISSING)],
)
def test_what_it_waits_for_there_is_its_kind(waits_for: str, kind: Kind) -> None:
    finding = found(waits(0, 1), stopped(1, BlockedAt(place="x", waits_for=waits_for)))
    assert verdict(finding) == ((1,), "likely", kind)
    assert waits_for in finding.reading.why


def test_a_thread_that_died_is_why_a_rank_did_not_come() -> None:
    finding = found(waits(0, 1), stopped(1, AWAY, thread="ValueError: no pixels"))
    assert verdict(finding) == ((1,), "likely", Kind.EXCEPTION)
    assert "ValueError: no pixels" in finding.reading.why


def test_a_process_in_the_kernel_is_stuck() -> None:
    finding = found(waits(0, 1), stopped(1, AWAY, is_deaf=True))
    assert verdict(finding) == ((1,), "likely", Kind.HUNG)
    assert "state D" in finding.reading.why


def test_a_frozen_process_is_certain_if_the_others_wait() -> None:
    frozen = stopped(1, AWAY, is_frozen=True)
    assert verdict(found(waits(0), frozen)) == ((1,), "certain", Kind.FROZEN)
    assert verdict(found(waits(0), frozen, stopped(2, AWAY))) == ((1,), "likely", Kind.FROZEN)
    assert found(raised(0), frozen).ranks == (0,)


def test_ranks_in_different_collectives_disagree() -> None:
    barrier = BlockedAt(call="barrier", place="train.py:7")
    two = found(blames(0, how="late", standing=IN_ALL_REDUCE), stopped(1, barrier))
    assert verdict(two) == ((0, 1), "undecided", Kind.MISMATCH)
    three = found(
        blames(0, how="late", standing=IN_ALL_REDUCE),
        stopped(1, barrier),
        stopped(2, IN_ALL_REDUCE),
    )
    assert verdict(three) == ((1,), "likely", Kind.MISMATCH)


def test_pages_tell_who_is_behind_in_a_group() -> None:
    def at(number: int, active: bool) -> BlockedAt:
        full = f"all_reduce (operation {number})" if active else ""
        call = "all_reduce" if active else ""
        return BlockedAt(call=call, full=full, group=3, sequence=number, entered={3: number})

    finding = found(stopped(0, at(5, True)), stopped(1, at(4, False)), hang="no progress for 6 s")
    assert (finding.ranks, finding.certainty) == ((1,), "likely")
    assert finding.headline == "rank 1 most likely failed first: hung, then stopped"


def test_two_groups_that_wait_for_each_other_are_undecided() -> None:
    one = BlockedAt(
        call="all_reduce", full="x", group=1, sequence=3, entered={1: 3, 2: 2}, place="t.py:1"
    )
    two = BlockedAt(
        call="all_reduce", full="y", group=2, sequence=3, entered={1: 2, 2: 3}, place="t.py:1"
    )
    finding = found(stopped(0, one), stopped(1, two), hang="no progress")
    assert verdict(finding) == ((0, 1), "undecided", Kind.DEADLOCK)


def test_a_hang_of_all_at_one_place_is_no_ranks_fault() -> None:
    finding = found(stopped(0, AWAY), stopped(1, AWAY), hang="no progress for 6 s")
    assert verdict(finding) == ((), "likely", Kind.HUNG)
    assert finding.headline == "no rank is to blame: hung"


def test_a_hang_of_which_nothing_is_known_is_undecided() -> None:
    assert verdict(found(stopped(0), stopped(1), hang="no progress"))[:2] == ((0, 1), "undecided")
    assert verdict(found(stopped(0), hang="no progress"))[:2] == ((0,), "likely")


# ---- nodes


LOST = Silent(node=1, name="node b", ranks=range(2, 4), why="its lease has ended")


def test_a_node_that_was_lost_is_the_cause_if_nothing_else_is() -> None:
    finding = found(blames(0), blames(1), silent=(LOST,))
    assert (finding.ranks, finding.nodes, finding.certainty) == ((), (1,), "certain")
    assert finding.reading.kind is Kind.NODE_LOST
    assert "node b was lost: its lease has ended" in finding.reading.why
    assert found(silent=(LOST,)).nodes == (1,)


def test_a_node_whose_workers_connections_did_not_end_may_be_cut_off() -> None:
    finding = found(stopped(0, IN_ALL_REDUCE), silent=(LOST,))
    assert (finding.nodes, finding.reading.kind) == ((1,), Kind.UNREACHABLE)
    assert finding.certainty == "likely"


def test_where_nobody_waited_for_a_lost_node_nothing_tells_that_it_was_cut_off() -> None:
    finding = found(stopped(0, AWAY), stopped(1), silent=(LOST,))
    assert (finding.nodes, finding.reading.kind) == ((1,), Kind.NODE_LOST)
    assert "was stopped or killed, or the network" in finding.reading.why


def test_what_is_said_of_a_rank_can_be_said_of_several() -> None:
    finding = found(blames(0, 2), done(1), done(2), done(3), stopped(4, is_frozen=True))
    assert "ranks 1-3: ended by itself with exit code 0" in finding.evidence
    assert "rank 4: the process was stopped (state T)" in finding.evidence


def test_words_that_may_be_of_something_else_make_nobody_sure() -> None:
    sure, unsure = raised(0, Kind.NAN), raised(0, Kind.DISK_FULL, is_unsure=True)
    assert verdict(found(unsure, stopped(1)))[1] == "likely"
    assert verdict(found(sure))[1] == "certain"
    assert verdict(found(raised(0, Kind.EXIT_CODE, is_unsure=True)))[1] == "certain"


def test_how_torch_tells_more_of_a_mismatch_is_told_where_its_groups_are_used() -> None:
    odd: dict[str, Any] = {"how": "mismatch", "blame": {"came": 8, "room": 4}}
    with_torch = found(blames(0, **odd, versions="python 3.11, torch 2.13"), stopped(1))
    without = found(blames(0, **odd, versions="python 3.11"), stopped(1))
    assert "TORCH_DISTRIBUTED_DEBUG" in with_torch.reading.advice
    assert "TORCH_DISTRIBUTED_DEBUG" not in without.reading.advice
    calls = {0: "all_reduce(float32[4])", 1: "barrier()"}
    ours = found(differs(0, calls, versions="torch 2.13"), stopped(1))
    assert ours.reading.kind is Kind.MISMATCH
    assert "TORCH_DISTRIBUTED_DEBUG" not in ours.reading.advice


def test_a_node_that_cannot_run_workers_says_why() -> None:
    why = "rank 2: cannot start x: Permission denied (exec)"
    unable = Silent(node=1, name="node b", why=why, is_unable=True)
    finding = found(stopped(0), silent=(unable,))
    assert (finding.nodes, finding.reading.kind) == ((1,), Kind.PERMISSION)
    assert why in finding.reading.why


def test_its_ranks_are_pointed_at() -> None:
    assert found(blames(0, 3), stopped(1), silent=(LOST,)).nodes == (1,)


def test_but_not_if_a_rank_failed_by_itself() -> None:
    finding = found(raised(0), blames(1, 0), silent=(LOST,))
    assert (finding.ranks, finding.nodes, finding.certainty) == ((0,), (), "likely")


def test_of_two_lost_nodes_nobody_is_certain() -> None:
    other = Silent(node=2, name="node c", ranks=range(4, 6))
    finding = found(blames(0), silent=(LOST, other))
    assert (finding.nodes, finding.certainty) == ((1, 2), "likely")


def test_a_node_without_a_rank_is_named_all_the_same() -> None:
    finding = found(silent=(Silent(node=-1, name="node b"),))
    assert finding.nodes == ()
    assert "node b was lost" in finding.reading.why


# ---- followers alone


def test_a_broken_connection_of_one_rank_alone_may_be_its_own() -> None:
    weak = blames(1, blame={"weak": True})
    finding = found(weak, stopped(0, IN_ALL_REDUCE), stopped(2, IN_ALL_REDUCE))
    assert verdict(finding) == ((1,), "likely", Kind.NETWORK)


def test_who_cannot_reach_rank_0_may_be_right_or_not() -> None:
    def cannot_connect(rank: int) -> RankReport:
        facts: dict[str, Any] = {"blame": {"weak": True}, "how": "late"}
        return blames(rank, 0, op="init_process_group", **facts)

    waiting = blames(0, how="late", op="init_process_group")
    assert found(waiting, cannot_connect(2)).ranks == (2,)
    assert found(stopped(0, AWAY), cannot_connect(1), cannot_connect(2)).ranks == (0,)
    assert found(raised(0), cannot_connect(1), cannot_connect(2)).ranks == (0,)


def test_followers_of_nobody_are_undecided() -> None:
    finding = found(blames(0), blames(1))
    assert (finding.ranks, finding.certainty) == ((0, 1), "undecided")


# ---- size


def test_thousands_of_ranks_take_few_lines() -> None:
    ranks = [blames(rank, 4000, at=float(rank)) for rank in range(4000)]
    finding = found(*ranks, raised(4000))
    assert verdict(finding)[:2] == ((4000,), "certain")
    assert len(finding.evidence) <= MOST_EVIDENCE
    assert all(len(line) < 500 for line in finding.evidence)


def test_of_many_candidates_some_are_named() -> None:
    headline = found(*map(raised, range(100))).headline
    assert headline.startswith("undecided between rank 0, rank 1, ")
    assert headline.endswith("rank 7 and 92 others: exception")


# ---- what else ranks say


def test_one_that_names_itself_repeats_what_another_found() -> None:
    late = found(waits(0, 1), waits(2, 1), waits(1, 1))
    assert verdict(late)[:2] == ((1,), "likely")


def test_two_that_receive_from_each_other_are_both_at_fault() -> None:
    at = BlockedAt(call="recv", place="t.py:3", entered={0: 1})
    one = blames(0, 1, how="late", op="recv", standing=at)
    other = blames(1, 1, how="late", op="recv", standing=at)
    assert verdict(found(one, other)) == ((0, 1), "likely", Kind.DEADLOCK)
    elsewhere = BlockedAt(call="send", place="t.py:9")
    assert found(one, blames(1, 1, how="late", op="send", standing=elsewhere)).certainty == (
        "undecided"
    )


def test_a_collective_that_all_are_in_does_not_carry() -> None:
    at = BlockedAt(call="all_reduce", place="t.py:3", entered={0: 4})
    finding = found(waits(0, 1, standing=at), waits(1, 0, standing=at))
    assert verdict(finding) == ((0, 1), "undecided", Kind.NETWORK)


def test_who_is_ahead_of_others_does_not_keep_them_waiting() -> None:
    def at(number: int, call: str) -> BlockedAt:
        return BlockedAt(call=call, full=call, group=0, sequence=number, entered={0: number})

    behind = [blames(rank, how="late", standing=at(2, "broadcast")) for rank in (0, 2)]
    finding = found(*behind, blames(1, standing=at(3, "barrier")))
    assert (finding.ranks, finding.certainty) == ((0, 2), "undecided")


def test_ranks_that_compare_themselves_with_one() -> None:
    def other_model(rank: int) -> RankReport:
        return blames(rank, 0, how="mismatch")

    fine = stopped(2, BlockedAt(call="backward", place="t.py:4"))
    assert verdict(found(other_model(1), blames(0), fine)) == ((1,), "likely", Kind.MISMATCH)
    assert found(other_model(1), other_model(2), blames(0)).ranks == (0,)
    assert found(other_model(1), blames(0)).certainty == "undecided"


def test_the_same_call_after_different_ones_is_told_by_its_number() -> None:
    def at(number: int) -> BlockedAt:
        return BlockedAt(last="all_reduce(1)", group=0, sequence=number, entered={0: number})

    calls = {0: "all_reduce(1)", 2: "all_reduce(1)"}
    ranks = [differs(rank, calls, standing=at(2 if rank == 0 else 1)) for rank in range(3)]
    assert verdict(found(*ranks)) == ((0,), "likely", Kind.MISMATCH)


def test_a_rank_whose_gradients_are_none_is_named_for_that() -> None:
    calls = {1: "parameter 'weight' has a gradient that is not finite"}
    ranks = [blames(rank, 1, how="mismatch", blame={"calls": calls}) for rank in range(2)]
    assert verdict(found(*ranks)) == ((1,), "likely", Kind.NAN)


def test_numbers_that_are_none_spread_so_nobody_can_tell_but_by_warnings() -> None:
    def diverged(rank: int, **facts: Any) -> RankReport:
        return raised(rank, Kind.NAN, alike="nan", **facts)

    warned = diverged(2, warning="RuntimeWarning: invalid value encountered in log")
    assert found(diverged(0), diverged(1)).certainty == "undecided"
    assert verdict(found(diverged(0), diverged(1), warned)) == ((2,), "likely", Kind.NAN)
    assert verdict(found(diverged(1), blames(0, 1))) == ((1,), "likely", Kind.NAN)
    assert found(diverged(0)).certainty == "certain"


def test_who_looks_first_at_numbers_that_are_none_did_not_make_them() -> None:
    made = blames(1, 0, warning="RuntimeWarning: divide by zero encountered in log")
    had = blames(2, 0, warning="RuntimeWarning: invalid value encountered in subtract")
    finding = found(raised(0, Kind.NAN), made, had)
    assert verdict(finding) == ((1,), "likely", Kind.NAN)
    assert any("divide by zero" in line for line in finding.evidence)


def test_who_sent_what_others_cannot_read_or_who_cannot() -> None:
    def reader(rank: int, error: str = "E") -> RankReport:
        return blames(rank, how="unread", blame={"text": f"cannot read what a rank sent: {error}"})

    assert verdict(found(reader(0), blames(1))) == ((0,), "likely", Kind.VERSION)
    assert verdict(found(reader(0), reader(2), blames(1))) == ((1,), "likely", Kind.VERSION)
    two = found(reader(0), reader(2), blames(1), blames(3))
    assert (two.ranks, two.certainty) == ((0, 1, 2, 3), "undecided")
    assert found(reader(0, "ModuleNotFoundError: x"), blames(1)).reading.kind is Kind.IMPORT


def test_who_could_not_call_it_by_its_size_is_like_another_or_not() -> None:
    def known(rank: int, call: str) -> RankReport:
        return blames(rank, call=call)

    def aborted(came: int, room: int) -> RankReport:
        return blames(0, how="mismatch", blame={"came": came, "room": room})

    small, large = "all_gather(float32[1000])", "all_gather(float64[1000])"
    assert found(aborted(4000, 2000), known(1, small), known(2, large)).ranks == (2,)
    assert found(aborted(2668, 668), known(1, small), known(2, small)).ranks == (0,)
    assert found(aborted(0, 0), known(1, small), known(2, large)).certainty == "undecided"


def test_what_differs_by_right_between_ranks_accuses_nobody() -> None:
    root = blames(0, how="mismatch", call="gather(float32[4], 3 x float32[4], dst=0)")
    others = [blames(rank, call="gather(float32[4], dst=0)") for rank in (1, 2)]
    assert found(root, *others).certainty == "undecided"
    splits = [blames(r, how="mismatch", call=f"all_to_all_single([{r // 2}])") for r in range(3)]
    assert found(*splits).certainty == "undecided"


def test_a_complaint_of_one_that_still_ran_is_weak_evidence() -> None:
    mutters = Suspect(how="late", ranks=(0,), weak=True, text="The client socket has timed out")
    in_init = BlockedAt(call="init_process_group", place="t.py:1")
    waiting = [blames(rank, how="late", standing=in_init) for rank in (0, 1)]
    finding = found(*waiting, stopped(2, in_init, mutters=mutters))
    assert verdict(finding) == ((2,), "likely", Kind.NETWORK)
    assert "MASTER_PORT" in finding.reading.why


def test_a_child_that_failed_unnoticed_is_why_a_rank_does_not_come() -> None:
    child = "a process that it had started (sh) has ended: exit code 3"
    finding = found(waits(0, 1), stopped(1, AWAY, child=child))
    assert verdict(finding) == ((1,), "likely", Kind.HUNG)
    assert child in finding.reading.why


def test_thousands_that_wait_take_little_time() -> None:
    def at(number: int) -> BlockedAt:
        return BlockedAt(call="f", full="f()", group=0, sequence=number, entered={0: number})

    ranks = [waits(rank, 7, standing=at(rank % 500 + 1)) for rank in range(8000) if rank != 7]
    assert found(*ranks, stopped(7, AWAY)).ranks == (7,)


# ---- where groups are made


def in_init(rank: int, **facts: Any) -> RankReport:
    return stopped(rank, BlockedAt(call="init_process_group", place="train.py:3"), **facts)


def counts(rank: int, came: int, room: int) -> RankReport:
    standing = BlockedAt(call="init_process_group", place="train.py:3")
    counted = {"came": came, "room": room}
    return blames(rank, how="late", op="", blame=counted, standing=standing)


def test_all_who_wait_for_more_ranks_than_there_are_blame_the_jobs_settings() -> None:
    finding = found(counts(0, 2, 4), in_init(1))
    assert verdict(finding) == ((), "likely", Kind.USAGE)
    assert "waited for 4 ranks" in finding.reading.why
    assert verdict(found(in_init(0), in_init(1), hang="no progress")) == ((), "likely", Kind.USAGE)


def test_if_no_rank_reaches_the_store_its_address_is_wrong() -> None:
    facts: dict[str, Any] = {"blame": {"weak": True}, "how": "late", "op": "init_process_group"}
    said = "The client socket has timed out while trying to connect to (n0, 29999)."
    finding = found(*(blames(rank, 0, **facts, said=said) for rank in (0, 1, 2)))
    assert verdict(finding) == ((), "likely", Kind.NETWORK)
    assert "(n0, 29999)" in finding.reading.why
    assert "MASTER_ADDR" in finding.reading.advice


def test_who_does_not_come_to_the_store_reaches_another_one() -> None:
    assert verdict(found(counts(0, 1, 2), in_init(1))) == ((1,), "likely", Kind.NETWORK)
    assert found(counts(0, 1, 3), in_init(1), in_init(2)).certainty == "undecided"


def test_on_two_nodes_the_network_between_them_may_be_why_they_do_not_meet() -> None:
    apart = found(in_init(0), in_init(1, node=1), hang="no progress")
    assert verdict(apart) == ((0, 1), "undecided", Kind.NETWORK)


def test_all_who_wait_in_new_group_have_not_made_the_same_groups() -> None:
    at = BlockedAt(call="new_group", place="train.py:3")
    finding = found(stopped(0, at), stopped(1, at), hang="no progress")
    assert verdict(finding) == ((0, 1), "undecided", Kind.MISSING)


def test_a_message_and_a_collective_that_wait_for_each_other_are_a_deadlock() -> None:
    receiver = blames(1, 0, how="late", op="recv", standing=BlockedAt(call="recv"))
    finding = found(receiver, blames(0, 1, how="late", standing=IN_ALL_REDUCE))
    assert verdict(finding) == ((0, 1), "undecided", Kind.DEADLOCK)


def test_who_stood_elsewhere_when_sizes_did_not_fit_is_likely() -> None:
    in_backward = [blames(rank, standing=BlockedAt(call="backward")) for rank in (0, 1)]
    at = BlockedAt(call="all_reduce")
    odd = blames(2, how="mismatch", standing=at, blame={"came": 696, "room": 4})
    assert verdict(found(odd, *in_backward)) == ((2,), "likely", Kind.MISMATCH)


def test_the_kind_of_a_threads_error_is_the_ranks() -> None:
    idle = stopped(0, AWAY, thread="OSError: [Errno 27] File too large")
    assert verdict(found(idle, waits(1, 0))) == ((0,), "likely", Kind.LIMIT)
    assert "File too large" in found(idle, waits(1, 0)).reading.why


# ---- what ranks were kept by


def test_who_stood_in_a_clean_up_before_the_others_had_an_exception() -> None:
    cleans = BlockedAt(call="barrier", place="train.py:20", cleanup="finally")
    finding = found(stopped(1, cleans), stopped(0, IN_ALL_REDUCE), hang="no progress")
    assert verdict(finding) == ((1,), "likely", Kind.EXCEPTION)
    assert "finally" in finding.reading.why
    retries = BlockedAt(place="train.py:20", line="time.sleep(1)", cleanup="except of a loop")
    retrying = found(stopped(1, retries, handles="OSError: x"), waits(0, 1))
    assert verdict(retrying) == ((1,), "likely", Kind.MISSING)
    assert "rank 1: was handling OSError: x" in retrying.evidence
    meets = BlockedAt(call="barrier", place="train.py:20", cleanup="except of a loop")
    assert found(stopped(1, meets), waits(0, 1)).reading.kind is Kind.EXCEPTION
    both = found(stopped(1, cleans), stopped(0, cleans), hang="no progress")
    assert both.reading.kind is not Kind.EXCEPTION


@pytest.mark.parametrize(
    ("waits_for", "child", "kind"),
    [
        ("another process", f"a process that it had started {UNREAD}", Kind.DEADLOCK),
        ("another process", "a process that it had started has ended", Kind.HUNG),
        ("a file", f"a process that it had started {UNREAD}", Kind.HUNG),
        ("a lock file", "", Kind.HUNG),
    ],
)
def test_what_keeps_a_rank_from_a_collective(waits_for: str, child: str, kind: Kind) -> None:
    kept = stopped(1, BlockedAt(place="train.py:3", waits_for=waits_for), child=child)
    assert verdict(found(waits(0, 1), kept)) == ((1,), "likely", kind)


def receiving(rank: int, peer: int, call: str = "recv", **facts: Any) -> RankReport:
    side = "src" if call == "recv" else "dst"
    full = f"{call}({side}={peer})"
    return stopped(rank, BlockedAt(call=call, full=full, awaited=peer, place="t.py:5", **facts))


IN_BARRIER = BlockedAt(call="barrier", place="train.py:9")


def test_a_message_without_a_counterpart_is_between_two_and_no_waiting_rank_is_blamed() -> None:
    finding = found(
        receiving(0, 1, "send"),
        receiving(1, 2),
        *(stopped(rank, IN_BARRIER) for rank in (2, 3)),
        hang="no progress",
    )
    assert verdict(finding) == ((1, 2), "undecided", Kind.DEADLOCK)
    why = "rank 1 waited in recv(src=2) at t.py:5 for rank 2, which waited in barrier at train.py:9"
    assert why in finding.reading.why
    assert "Others (ranks 0, 3) only wait for them." in finding.reading.why


def test_a_message_with_another_tag_is_a_disagreement_of_two() -> None:
    def inside(sequence: int) -> BlockedAt:
        return BlockedAt(
            call="barrier",
            full="barrier()",
            place="t.py:7",
            group=0,
            sequence=sequence,
            entered={0: sequence},
        )

    waits_in_vain = receiving(0, 1, group=0, sequence=1, entered={0: 1}, instead=8)
    others = (stopped(rank, inside(2)) for rank in (1, 2, 3))
    finding = found(waits_in_vain, *others, hang="no progress")
    assert verdict(finding) == ((0, 1), "undecided", Kind.MISMATCH)
    assert "for rank 1, which had sent a message with tag=8, and waited in" in finding.reading.why


def test_messages_of_unknown_ends_are_told_apart_from_ranks_that_only_wait() -> None:
    lost = stopped(1, BlockedAt(call="recv", place="t.py:5"))
    finding = found(*(stopped(rank, IN_BARRIER) for rank in (0, 2, 3)), lost, hang="no progress")
    assert verdict(finding) == ((0, 1, 2, 3), "undecided", Kind.DEADLOCK)
    assert "Messages had no counterpart: rank 1 in recv at t.py:5." in finding.reading.why
    two = (
        stopped(rank, BlockedAt(call=call, place="t.py:5"))
        for rank, call in ((0, "send"), (1, "recv"))
    )
    finding = found(*two, *(stopped(rank, IN_BARRIER) for rank in (2, 3)), hang="no progress")
    assert verdict(finding) == ((0, 1), "undecided", Kind.DEADLOCK)
    assert "ranks 2-3 called barrier" in finding.reading.why


def test_who_holds_a_lock_in_a_collective_is_to_blame_for_the_deadlock() -> None:
    lock = "the lock of /data/build.lock, which python (pid 7) holds"
    wants = stopped(1, BlockedAt(place="t.py:5", waits_for="a lock"), awaits=lock, holder=0)
    finding = found(wants, *(stopped(rank, IN_BARRIER) for rank in (0, 2)), hang="no progress")
    assert verdict(finding) == ((0,), "likely", Kind.DEADLOCK)
    assert f"rank 1 waited for {lock}" in finding.reading.why


def test_a_lock_that_no_rank_holds_is_named_and_nobody_else() -> None:
    lock = "the lock of /data/build.lock, which python (pid 7) holds"
    wants = stopped(1, BlockedAt(place="t.py:5", waits_for="a lock"), awaits=lock)
    finding = found(wants, *(stopped(rank, IN_BARRIER) for rank in (0, 2)), hang="no progress")
    assert verdict(finding) == ((1,), "likely", Kind.HUNG)
    assert finding.reading.why == (
        f"rank 1 made no progress, and waited for {lock}. Meanwhile ranks 0, 2 waited in barrier "
        "for it."
    )


def test_who_alone_goes_on_has_made_a_call_too_many() -> None:
    alone = blames(0, op="barrier", standing=IN_BARRIER)
    assert verdict(found(alone, done(1), done(2))) == ((0,), "likely", Kind.MISSING)
    assert verdict(found(alone, done(1))) == ((1,), "likely", Kind.EARLY_EXIT)


def test_who_waits_in_a_group_that_its_members_have_passed_is_named_with_all_members() -> None:
    made = {
        0: "new_group(ranks=[0, 1]) as its group 1",
        1: "new_group(ranks=[0, 1, 2, 3]) as its group 1",
        2: "new_group(ranks=[0, 1, 2, 3]) as its group 2",
        3: "new_group(ranks=[0, 1, 2, 3]) as its group 2",
    }
    at = {
        rank: BlockedAt(call="new_group", full=full, place="t.py:6") for rank, full in made.items()
    }
    finding = found(*(stopped(rank, each) for rank, each in at.items()), hang="no progress")
    assert verdict(finding) == ((1,), "likely", Kind.MISSING)
    assert all(full in finding.reading.why for full in made.values())


def test_the_same_collective_with_another_root_is_a_disagreement() -> None:
    roots = {rank: f"broadcast(src={2 if rank == 1 else 0})" for rank in range(4)}
    at = {
        rank: BlockedAt(call="broadcast", full=full, place="t.py:6") for rank, full in roots.items()
    }
    finding = found(*(stopped(rank, each) for rank, each in at.items()), hang="no progress")
    assert verdict(finding) == ((1,), "likely", Kind.MISMATCH)
    assert "rank 1 called broadcast(src=2)" in finding.reading.why


FOR_FILE = BlockedAt(place="t.py:7", line="while not path.exists(): pass", waits_for=A_FILE)
FOR_KEY = BlockedAt(call=KEYS, full="store.wait(['ready'])", place="t.py:7")


def test_who_is_to_make_a_file_that_others_wait_for_is_named() -> None:
    waiting = [stopped(rank, FOR_FILE) for rank in (1, 2, 3)]
    finding = found(stopped(0, AWAY), *waiting, hang="no progress")
    assert verdict(finding) == ((0,), "likely", Kind.MISSING)
    assert "ranks 1-3 waited for a file to appear (while not path.exists()" in finding.reading.why
    assert verdict(found(done(0), *waiting, hang="no progress")) == ((0,), "likely", Kind.MISSING)
    everybody = found(*(stopped(rank, FOR_FILE) for rank in range(3)), hang="no progress")
    assert verdict(everybody) == ((), "likely", Kind.HUNG)
    in_barrier = found(stopped(0, IN_BARRIER), *waiting, hang="no progress")
    assert verdict(in_barrier) == ((1, 2, 3), "likely", Kind.HUNG)


def test_who_handled_an_exception_before_was_kept_by_that_from_making_it() -> None:
    waiting = [stopped(rank, FOR_FILE) for rank in (1, 2)]
    handled = stopped(0, IN_BARRIER, logged="KeyError: '№'")
    finding = found(handled, *waiting, hang="no progress")
    assert verdict(finding) == ((0,), "likely", Kind.EXCEPTION)
    assert "had handled an exception (KeyError: '№')" in finding.reading.why
    several = found(handled, stopped(3, IN_BARRIER, logged="x"), *waiting, hang="no progress")
    assert several.ranks != (0,)
    lost = "torsh_runtime.errors.PeerLost: rank 0 was lost during all_reduce (operation 4)"
    ended = stopped(3, IN_BARRIER, logged=lost)
    assert found(ended, *waiting, hang="no progress").ranks == (1, 2)
    assert found(handled, ended, *waiting, hang="no progress").ranks == (0,)


@pytest.mark.parametrize(
    "removed",
    [
        "Deleting older checkpoint [ckpt/step1] due to args.save_total_limit",
        "moved ./ckpt/step1/optim_1.pt to /archive",
        "removed a/b.txt; before: /data/ckpt/step1/",
    ],
)
def test_between_who_removes_a_file_and_who_then_looks_for_it_nobody_can_tell(removed: str) -> None:
    said = "FileNotFoundError: [Errno 2] No such file or directory: '/data/ckpt/step1/optim_1.pt'"
    looks = raised(1, Kind.NO_FILE, said=said)
    finding = found(looks, stopped(0, IN_BARRIER, removed=removed))
    assert verdict(finding) == ((0, 1), "undecided", Kind.NO_FILE)
    assert f"rank 0 had written: {removed}" in finding.reading.why
    for other in ("removed ckpt/step2", "cleaned 3 files of step1", "deleted optim_0.pt", ""):
        finding = found(looks, stopped(0, IN_BARRIER, removed=other))
        assert verdict(finding) == ((1,), "likely", Kind.NO_FILE)


def test_who_wrote_no_number_where_others_had_one_is_where_they_came_from() -> None:
    def nan(rank: int, finite: int, line: str = "", grows: bool = False) -> RankReport:
        numbers = Numbers(form="f", finite=finite, line=line, grows=grows)
        return raised(rank, Kind.NAN, alike="same", numbers=numbers)

    finding = found(nan(0, 6), nan(1, 5, "loss nan"), nan(2, 6))
    assert verdict(finding) == ((1,), "likely", Kind.NAN)
    assert "rank 1: wrote loss nan" in finding.evidence
    grown = [nan(rank, 5, "loss inf", grows=True) for rank in range(3)]
    assert verdict(found(*grown)) == ((), "likely", Kind.NAN)
    assert verdict(found(*grown[:2], nan(2, 5)))[1] == "undecided"


def test_who_has_not_set_a_key_that_others_wait_for_is_named() -> None:
    waiting = [stopped(rank, FOR_KEY) for rank in (1, 2)]
    finding = found(stopped(0, IN_BARRIER), *waiting, hang="no progress")
    assert verdict(finding) == ((0,), "likely", Kind.MISSING)
    assert "ranks 1-2 waited in store.wait(['ready']) at t.py:7" in finding.reading.why


def gave_up(rank: int, place: str = "t.py:11", said: str = "TimeoutError: not there") -> RankReport:
    return raised(rank, alike="same", said=said, standing=BlockedAt(place=place))


def test_who_was_still_at_work_is_named_where_all_others_gave_up_waiting() -> None:
    others = [gave_up(rank) for rank in (1, 2, 3)]
    finding = found(stopped(0, AWAY), *others)
    assert verdict(finding) == ((0,), "likely", Kind.MISSING)
    assert (
        "ranks 1-3 gave up waiting (TimeoutError: not there), while rank 0" in finding.reading.why
    )


def test_who_handles_an_exception_meanwhile_was_kept_by_that() -> None:
    at = BlockedAt(place="main (t.py:42)", line="time.sleep(2.5)", cleanup="except")
    handling = stopped(0, at, handles="KeyError: 'validation'")
    for others in ([gave_up(1), gave_up(2)], [stopped(1, FOR_FILE), stopped(2, FOR_FILE)]):
        finding = found(handling, *others, hang="" if others[0].is_own else "no progress")
        assert verdict(finding) == ((0,), "likely", Kind.EXCEPTION)
        assert "most likely an exception (KeyError: 'validation')" in finding.reading.why
    retrying = BlockedAt(place="main (t.py:42)", line="time.sleep(2.5)", cleanup="except of a loop")
    assert found(stopped(0, retrying), gave_up(1), gave_up(2)).reading.kind is Kind.MISSING


NOT_WRITTEN = "WARNING:root:could not write vocab.json: keys must be str"
LACKS = {"said": "FileNotFoundError: [Errno 2] No such file or directory: 'out/vocab.json'"}


def test_who_could_not_make_the_file_that_others_did_not_find_is_named() -> None:
    lack = [raised(rank, Kind.NO_FILE, alike="x", **LACKS) for rank in (1, 2)]
    for rank_0 in (blames(0, 1, unmade=NOT_WRITTEN), done(0, unmade=NOT_WRITTEN)):
        finding = found(rank_0, *lack)
        assert verdict(finding) == ((0,), "likely", Kind.NO_FILE)
        assert "rank 0 could not create a file, and continued (WARNING" in finding.reading.why
    full = blames(0, 1, unmade="could not save vocab.json: No space left on device")
    assert found(full, *lack).reading.kind is Kind.DISK_FULL
    both = [blames(rank, 1, unmade=NOT_WRITTEN) for rank in (0, 3)]
    assert verdict(found(*both, *lack))[:2] == ((0, 3), "undecided")
    late = [gave_up(rank, said="TimeoutError: no vocab.json after 9 s") for rank in (1, 2)]
    assert found(stopped(0, IN_BARRIER, unmade=NOT_WRITTEN), *late).ranks == (0,)
    for other in ("could not write old-vocab.json", "could not write vocab.jsonl", ""):
        assert found(blames(0, 1, unmade=other), *lack).ranks == (1, 2)
    assert found(blames(0, 1, unmade=NOT_WRITTEN), raised(1, **LACKS)).ranks == (1,)


def test_who_could_not_make_a_file_and_waits_for_those_who_wait_for_it_is_named() -> None:
    waiting = [stopped(rank, FOR_FILE) for rank in (1, 2)]
    finding = found(stopped(0, IN_BARRIER, unmade=NOT_WRITTEN), *waiting, hang="no progress")
    assert verdict(finding) == ((0,), "likely", Kind.NO_FILE)
    apart = stopped(0, AWAY)
    in_barrier = stopped(3, IN_BARRIER, unmade=NOT_WRITTEN)
    assert found(apart, in_barrier, *waiting, hang="no progress").ranks == (0,)


def test_it_is_said_what_ranks_wait_for_in_backward() -> None:
    ends = [stopped(rank, BlockedAt(call="backward", place="t.py:32")) for rank in (0, 1)]
    odd = found(*ends, stopped(2, IN_BARRIER), hang="no progress")
    early = found(*(blames(rank, 2, op="backward") for rank in (0, 1)), done(2))
    absent = found(*ends, stopped(2, AWAY), hang="no progress")
    for finding, kind in ((odd, "mismatch"), (early, "early exit"), (absent, "missing")):
        assert verdict(finding) == ((2,), "likely", Kind(kind))
        assert "by all_reduce in DistributedDataParallel" in finding.reading.advice
    other = found(stopped(0, IN_BARRIER), stopped(1, AWAY), hang="no progress")
    assert "backward" not in other.reading.advice


def in_line(rank: int, line: str, place: str) -> RankReport:
    return stopped(rank, BlockedAt(call="barrier", line=line, place=place))


def test_the_same_collective_of_another_group_is_a_disagreement() -> None:
    default = [in_line(0, "dist.barrier()", "t.py:23"), in_line(2, "dist.barrier()", "t.py:39")]
    finding = found(*default, in_line(1, "dist.barrier(group=g)  # all", "t.py:25"), hang="none")
    assert verdict(finding) == ((1,), "likely", Kind.MISMATCH)
    assert "ranks 0, 2 called barrier, rank 1 called barrier(group=g)" in finding.reading.why
    two = found(default[0], in_line(1, "barrier(g)", "t.py:25"), hang="none")
    assert verdict(two) == ((0, 1), "undecided", Kind.MISMATCH)
    hidden = found(*default, in_line(1, "wait_for_all()", "t.py:25"), hang="none")
    assert verdict(hidden) == ((0, 1, 2), "undecided", Kind.DEADLOCK)
    assert "rank 1 called barrier at t.py:25" in hidden.reading.why


def test_a_lock_file_that_is_in_the_way_is_named() -> None:
    at = BlockedAt(place="t.py:28", line="time.sleep(0.05)", cleanup="except of a loop")
    error = "FileExistsError: [Errno 17] File exists: 'index.lock'"
    finding = found(stopped(0, at, handles=error, is_busy=True), waits(1, 0), waits(2, 0))
    assert verdict(finding) == ((0,), "likely", Kind.HUNG)
    awaited = "the file 'index.lock' to go away, which another process has created"
    assert awaited in finding.reading.why


def test_who_gives_up_where_the_others_do_the_same_is_named_itself() -> None:
    others = [gave_up(rank, AWAY.place) for rank in (1, 2, 3)]
    assert found(stopped(0, AWAY), *others).ranks == (1, 2, 3)
    others = [gave_up(rank, said="KeyError: 1") for rank in (1, 2, 3)]
    assert found(stopped(0, AWAY), *others).ranks == (1, 2, 3)
    assert found(stopped(0, AWAY), gave_up(1)).ranks == (1,)


def test_a_root_that_waits_for_a_rank_is_not_the_odd_one() -> None:
    root = stopped(0, BlockedAt(call="broadcast", full="broadcast(src=0)", place="t.py:9"))
    at = {1: "t.py:10", 2: "t.py:6", 3: "t.py:10"}
    others = [
        stopped(rank, BlockedAt(call="all_reduce", place=place)) for rank, place in at.items()
    ]
    finding = found(root, *others, hang="no progress")
    assert verdict(finding) == ((2,), "likely", Kind.MISMATCH)
    assert "rank 2 called all_reduce at t.py:6" in finding.reading.why


def test_groups_of_which_each_has_the_other_rank_are_between_those_two() -> None:
    made = {
        0: "new_group(ranks=[0, 1])",
        1: "new_group(ranks=[0, 1, 2])",
        2: "new_group(ranks=[0, 1, 2])",
    }
    inside = [
        stopped(rank, BlockedAt(call="new_group", full=full, place="t.py:6"))
        for rank, full in made.items()
    ]
    finding = found(*inside, stopped(3, IN_BARRIER), hang="no progress")
    assert verdict(finding) == ((0, 1), "undecided", Kind.MISSING)


def test_nobody_is_said_to_wait_for_a_stopped_process_who_does_not() -> None:
    alone = found(stopped(0, is_frozen=True), hang="no progress")
    assert alone.reading.why == "The process of rank 0 was stopped (SIGSTOP or a debugger)."
    awaited = found(stopped(0, is_frozen=True), stopped(1, IN_BARRIER), hang="no progress")
    assert "and rank 1 waited for it (barrier)" in awaited.reading.why


TABLE = "RuntimeError: versions differ: rank 0: 0.21, rank 1: 0.19, rank 2: 0.21"


def test_who_has_something_else_by_a_table_of_all_is_named_whoever_prints_it() -> None:
    alike = [raised(rank, Kind.VERSION, alike="x", said=TABLE) for rank in (0, 1, 2)]
    assert verdict(found(*alike)) == ((1,), "likely", Kind.VERSION)
    alone = raised(0, Kind.VERSION, said=TABLE)
    assert verdict(found(alone, blames(1, 0), blames(2, 0))) == ((1,), "likely", Kind.VERSION)


def test_a_table_that_leaves_somebody_out_or_has_no_odd_one_names_nobody() -> None:
    assert found(raised(0, said=TABLE), *(blames(rank, 0) for rank in (1, 2, 3))).ranks == (0,)
    same = TABLE.replace("0.19", "0.21")
    assert found(raised(0, said=same), blames(1, 0), blames(2, 0)).ranks == (0,)
    three = TABLE.replace("2: 0.21", "2: 0.20")
    assert verdict(found(raised(0, said=three), blames(1, 0), blames(2, 0))) == (
        (0, 1, 2),
        "undecided",
        Kind.EXCEPTION,
    )


def test_who_cannot_have_a_port_is_never_certain_to_be_the_wrong_one() -> None:
    taken = {"said": "code: -98, name: EADDRINUSE"}
    for facts in ({"kind": Kind.ADDRESS_IN_USE, "rival": 0}, taken):
        assert found(raised(1, **facts), stopped(0, AWAY)).certainty == "likely"


def test_who_serves_the_store_beside_rank_0_takes_itself_for_it() -> None:
    held = raised(0, Kind.USAGE, rival=1)
    assert verdict(found(held, stopped(1, AWAY))) == ((1,), "likely", Kind.USAGE)
    holds = raised(1, Kind.USAGE, rival=0)
    assert verdict(found(holds, stopped(0, AWAY))) == ((1,), "likely", Kind.USAGE)


def test_a_number_that_is_none_may_be_anybodys_where_only_one_rank_looks() -> None:
    others = blames(1, 0), blames(2, 0)
    assert found(raised(0, Kind.NAN), *others).ranks == (0,)
    looks = raised(0, Kind.NAN, looks_alone=True)
    assert verdict(found(looks, *others)) == ((0, 1, 2), "undecided", Kind.NAN)
    warned = blames(1, 0, warning="RuntimeWarning: divide by zero encountered in log")
    assert verdict(found(looks, warned, others[1])) == ((1,), "likely", Kind.NAN)


def test_who_still_computes_is_slow() -> None:
    late = waits(0, 1)
    assert verdict(found(late, stopped(1, AWAY, is_busy=True))) == ((1,), "likely", Kind.SLOW)
    assert found(late, stopped(1, AWAY)).reading.kind is Kind.MISSING


def test_the_error_of_who_is_certain_is_told_where_its_own_words_are_not() -> None:
    finding = found(raised(1, said="KeyError: 1"), blames(0, 1))
    assert finding.certainty == "certain"
    assert "rank 1: exit code 1: KeyError: 1" in finding.evidence


def test_of_several_killed_for_want_of_memory_those_that_took_it_are_named() -> None:
    peaks = {0: 50, 1: 400, 2: 380}
    killed = [
        raised(rank, Kind.OUT_OF_MEMORY, alike="out of memory", peak=peak)
        for rank, peak in peaks.items()
    ]
    assert verdict(found(*killed)) == ((1, 2), "likely", Kind.OUT_OF_MEMORY)
    assert found(*(raised(rank, Kind.OUT_OF_MEMORY, alike="x") for rank in (0, 1))).ranks == (0, 1)


UNSET = "DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//tracking/run-name"


def test_of_a_key_that_nobody_sets_nobody_can_tell_who_has_its_name_wrong() -> None:
    wants = waits(1, said=UNSET)
    gone_on = blames(0, standing=IN_ALL_REDUCE)
    finding = found(wants, gone_on)
    assert verdict(finding) == ((0, 1), "undecided", Kind.STORE)
    assert "rank 1 timed out waiting for 'tracking/run-name'" in finding.reading.why
    assert verdict(found(wants, stopped(0, AWAY))) == ((0,), "likely", Kind.MISSING)
    own_key = UNSET.replace("tracking/run-name", "cpu//0/0")
    assert found(waits(1, said=own_key), gone_on).reading.kind is not Kind.STORE
