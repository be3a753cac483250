"""A hang in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torshrun.health.detector import Hang, RankState, Sample
from torshrun.health.pages import Collective, WorkerStatus
from torshrun.health.report import MOST_LINES, MOST_STACKS, describe, summary
from torshrun.text import format_ranks


def operation(sequence: int, ranks: int = 2, active: bool = True) -> Collective:
    return Collective(
        group=0,
        ranks=ranks,
        sequence=sequence,
        active=active,
        rounds=sequence,
        operation="all_reduce",
        dtype="float32",
        reduction="SUM",
        count=1024,
        root=-1,
        whole=True,
    )


def waiting(rank: int, seconds: float = 30.0, ranks: int = 2) -> RankState:
    inside = operation(8, ranks)
    status = WorkerStatus(initialised=True, step=3, collectives=(inside,))
    return RankState(sample=Sample(rank=rank, status=status), waits_in=inside, seconds=seconds)


def absent(rank: int, *last: Collective, **facts: object) -> RankState:
    status = WorkerStatus(initialised=bool(last), collectives=last)
    sample = replace(Sample(rank=rank, status=status), **facts)  # type: ignore[arg-type]
    return RankState(sample=sample, waits_in=None, seconds=30.0)


BEHIND = operation(7, active=False)


def test_who_waits_and_who_has_not_come() -> None:
    hang = Hang(seconds=30.2, ranks=(waiting(0), absent(1, BEHIND)), suspect=1)
    assert describe(hang, {0: "MainThread\n  step (a.py:1)", 1: ""}, "no stack of rank 1").split(
        "\n"
    ) == [
        "no progress for 30 s: rank 0 waits in all_reduce(float32[1024], SUM) (operation 8) "
        "for rank 1",
        "  rank 1: not in it yet, last in all_reduce(float32[1024], SUM) (operation 7)",
        "  rank 0: in all_reduce(float32[1024], SUM) (operation 8) for 30 s; step 3",
        "  stack of rank 0, most recent call first:",
        "    MainThread",
        "      step (a.py:1)",
        "  no stack of rank 1",
    ]
    assert summary(hang) == describe(hang, {}).split("\n")[0]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (absent(1), "rank 1: not initialised"),
        (absent(1, alive=False), "rank 1: ended"),
        (absent(1, BEHIND, alive=False), "rank 1: ended, last in all_reduce"),
        (absent(1, BEHIND, state="T"), "; its process is stopped"),
        (absent(1, BEHIND, state="t"), "; held by a debugger"),
        (absent(1, operation(8, active=False)), "rank 1: past it, after all_reduce"),
    ],
)
def test_what_is_said_of_a_rank_that_is_not_there(state: RankState, text: str) -> None:
    assert text in describe(Hang(seconds=30, ranks=(waiting(0), state), suspect=1), {})


def test_sixty_four_ranks_take_a_few_lines() -> None:
    ranks = [waiting(rank, 30.0 + rank % 3, ranks=64) for rank in range(64)]
    ranks[17] = absent(17, BEHIND)
    stacks = dict.fromkeys(range(64), "MainThread\n  all_reduce (a.py:1)") | {17: "x"}
    text = describe(Hang(seconds=32, ranks=tuple(ranks), suspect=17), stacks)
    lines = text.split("\n")
    assert len(lines) == 8
    assert lines[0].startswith("no progress for 32 s: ranks 0-16, 18-63 wait in all_reduce")
    assert lines[1].startswith("  rank 17: not in it yet")
    assert "for 30 s to 32 s" not in text
    assert "for 30 to 32 s" in lines[2]
    assert lines[3] == "  stack of rank 17, most recent call first:"


def test_the_end_of_a_row_of_those_that_wait_is_in_another_group() -> None:
    elsewhere = absent(2, replace(operation(3, active=False), group=1))
    hang = Hang(seconds=30, ranks=(waiting(0), waiting(1), elsewhere), suspect=2)
    assert summary(hang).endswith("(operation 8), and at the end all for rank 2")
    inside = replace(operation(3), group=1)
    in_a_circle = replace(waiting(1), waits_in=inside)
    hang = Hang(seconds=30, ranks=(waiting(0), in_a_circle), suspect=1)
    assert summary(hang).endswith("(operation 8) for rank 1, which waits for others itself")


def test_if_all_of_the_node_wait_the_missing_are_elsewhere() -> None:
    ranks = (waiting(0, ranks=4), waiting(1, ranks=4))
    hang = Hang(seconds=30, ranks=ranks, suspect=0)
    assert describe(hang, {}).split("\n")[0].endswith("(operation 8) for ranks of other nodes")


def test_silence_of_all() -> None:
    hang = Hang(seconds=9.6, ranks=(absent(0), absent(1, BEHIND)), suspect=0)
    lines = describe(hang, {}).split("\n")
    assert lines[0] == "no progress for 10 s: no output and no CPU use of any worker"
    assert lines[1] == "  rank 0: in no collective of torsh_runtime"
    assert lines[2].startswith("  rank 1: in no collective, last in all_reduce")


def test_many_stacks_are_cut_and_it_says_so() -> None:
    ranks = tuple(absent(rank) for rank in range(MOST_STACKS + 2))
    stacks = {rank: f"thread {rank}\n" + "line\n" * 100 for rank in range(len(ranks))}
    text = describe(Hang(seconds=30, ranks=ranks, suspect=0), stacks)
    assert text.count("most recent call first") == MOST_STACKS
    assert f"{101 - MOST_LINES} more lines" in text
    assert text.endswith("2 other stacks are not shown")


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([3], "rank 3"), ([1, 0], "ranks 0-1"), ([9, 0, 1, 2, 5], "ranks 0-2, 5, 9")],
)
def test_ranks_are_named_in_runs(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text
