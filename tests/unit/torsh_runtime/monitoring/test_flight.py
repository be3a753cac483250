"""Who is out of step, from recordings."""

from __future__ import annotations

from torsh_runtime.monitoring.flight import in_words, suspicions
from torsh_runtime.monitoring.layout import Operation


def call(
    sequence: int,
    operation: str = "all_reduce",
    *,
    state: str = "done",
    at: float = -1.0,
    group: int = 0,
    ranks: int = 3,
    elements: int = 8,
) -> Operation:
    left = None if state == "running" else at + 0.5
    root = 0 if operation == "broadcast" else -1
    return Operation(
        number=sequence,
        operation=operation,
        dtype="float32",
        reduction="SUM",
        elements=elements,
        nbytes=4 * elements,
        root=root,
        arrays=0,
        group=group,
        ranks=ranks,
        sequence=sequence,
        state=state,
        entered=at,
        came=None,
        left=left,
    )


def test_all_in_step() -> None:
    assert suspicions({0: [call(1), call(2)], 1: [call(1), call(2)], 2: []}) == []


def test_who_never_entered_what_the_others_wait_in() -> None:
    waiting = call(3, state="running", at=-9.0)
    (found,) = suspicions({0: [call(2), waiting], 1: [call(1), call(2)], 2: [call(2), waiting]})
    assert (found.kind, found.ranks, found.waiting) == ("missing", (1,), (0, 2))
    assert in_words(found, 0.0) == (
        "rank 1 never entered all_reduce(float32[8], SUM) #3 of the default group; ranks 0, 2 wait "
        "in it since 9.0 s; rank 1 was last in all_reduce(float32[8], SUM) #2 of the default "
        "group, 0.5 s ago"
    )


def test_one_that_has_called_something_else() -> None:
    failed = call(2, state="failed")
    other = call(2, "broadcast", state="failed")
    (found,) = suspicions({0: [call(1), failed], 1: [call(1), other], 2: [call(1), failed]})
    assert (found.kind, found.ranks, found.has_failed) == ("mismatch", (1,), True)
    assert in_words(found) == (
        "rank 1 has called broadcast(float32[8], root 0) #2 of the default group, where others "
        "have called all_reduce(float32[8], SUM) #2 of the default group; it has failed on ranks "
        "0, 1, 2"
    )


def test_another_size_differs_where_sizes_must_be_the_same() -> None:
    def held(operation: str) -> dict[int, list[Operation]]:
        return {
            rank: [call(1, operation, state="running", elements=8 + (rank == 2))]
            for rank in range(3)
        }

    assert [each.ranks for each in suspicions(held("all_reduce"))] == [(2,)]
    assert suspicions(held("all_gather")) == []


def test_the_first_of_two_groups_in_which_ranks_wait_crosswise() -> None:
    records = {
        0: [
            call(1, group=1, ranks=2),
            call(2, group=1, ranks=2, state="running", at=-4.0),
            call(1, group=2, ranks=2),
        ],
        1: [
            call(1, group=1, ranks=2),
            call(1, group=2, ranks=2),
            call(2, group=2, ranks=2, state="running", at=-6.0),
        ],
    }
    found = suspicions(records)
    assert [(each.operation.group, each.ranks) for each in found] == [(2, (0,)), (1, (1,))]


def test_a_group_that_was_made_again_begins_anew() -> None:
    before = [call(0), call(1), call(2, state="failed"), call(0)]
    records = {0: [*before, call(1, state="running")], 1: before, 2: [call(0), call(1), call(0)]}
    (found,) = suspicions(records)
    assert (found.ranks, found.operation.sequence) == ((1, 2), 1)


def test_ranks_without_a_record_of_the_group_are_no_suspects() -> None:
    assert suspicions({0: [call(1, group=5, state="running")], 1: [call(1)]}) == []
