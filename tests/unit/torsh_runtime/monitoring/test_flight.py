"""Who is out of step, from recordings."""

from __future__ import annotations

from support.operations import operation as made

from torsh_runtime.monitoring.flight import Told, culprit, in_words, suspicions
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
    facts = {"state": state, "group": group, "ranks": ranks, "root": root}
    sizes = {"elements": elements, "nbytes": 4 * elements}
    return made(sequence, at, None, left, operation, **facts, **sizes)


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
    circle, *found = suspicions(records)
    assert [(each.operation.group, each.ranks) for each in found] == [(2, (0,)), (1, (1,))]
    assert (circle.kind, circle.ranks, culprit([circle, *found])) == ("crosswise", (0, 1), circle)
    assert in_words(circle, 0.0) == (
        "ranks 0, 1 wait for each other, since 6.0 s: rank 0 in all_reduce(float32[8], SUM) #2 of "
        "group 1, rank 1 in all_reduce(float32[8], SUM) #2 of group 2"
    )


def test_a_group_that_was_made_again_begins_anew() -> None:
    before = [call(0), call(1), call(2, state="failed"), call(0)]
    records = {0: [*before, call(1, state="running")], 1: before, 2: [call(0), call(1), call(0)]}
    (found,) = suspicions(records)
    assert (found.ranks, found.operation.sequence) == ((1, 2), 1)


def test_ranks_without_a_record_of_the_group_are_no_suspects() -> None:
    assert suspicions({0: [call(1, group=5, state="running")], 1: [call(1)]}) == []


def test_a_circle_of_three_that_a_fourth_waits_for() -> None:
    def inside(group: int, *before: int) -> list[Operation]:
        held = [call(1, group=each, ranks=2, at=-20.0) for each in (*before, group)]
        return [*held, call(2, group=group, ranks=2, state="running", at=-9.0 - group)]

    records = {0: inside(1, 3), 1: inside(2, 1), 2: inside(3, 2, 4), 3: inside(4)}
    circle = suspicions(records)[0]
    assert (circle.kind, circle.ranks) == ("crosswise", (0, 1, 2))


def test_at_the_end_of_a_row_stands_who_waits_for_nobody() -> None:
    records = {
        0: [call(1, group=1), call(2, group=1, state="running", at=-9.0)],
        1: [call(1, group=1), call(1, group=2), call(2, group=2, state="running", at=-8.0)],
        2: [call(1, group=2)],
    }
    found = suspicions(records)
    assert [each.ranks for each in found] == [(1,), (2,)]
    root = culprit(found)
    assert root is not None
    assert root.ranks == (2,)


def test_members_that_have_called_nothing_are_suspects() -> None:
    waiting = call(0, group=5, ranks=2, state="running")
    records = {0: [waiting], 1: [], 2: [call(0)]}
    assert suspicions(records) == []
    assert [each.ranks for each in suspicions(records, {5: (0, 1)})] == [(1,)]
    assert [each.ranks for each in suspicions(records, {5: (0, 2)})] == [(2,)]
    of_all = {rank: [call(0, state="running")] * (rank < 2) for rank in range(3)}
    assert [each.ranks for each in suspicions(of_all)] == [(2,)]


def test_a_message_that_its_sender_has_not_called() -> None:
    def message(operation: str, peer: int, sequence: int, state: str = "done") -> Operation:
        made = call(sequence, operation, state=state, at=-3.0)
        return made._replace(root=peer)

    waits = [message("recv", 1, 0), message("recv", 1, 1, "running")]
    records = {0: waits, 1: [message("send", 0, 0)], 2: []}
    (found,) = suspicions(records)
    assert (found.kind, found.ranks, found.waiting) == ("missing", (1,), (0,))
    assert suspicions({**records, 1: [message("send", 0, 0), message("send", 0, 1)]}) == []
    each_other = {
        0: [message("recv", 1, 0, "running")],
        1: [message("recv", 0, 0, "running")],
        2: [],
    }
    assert suspicions(each_other)[0].ranks == (0, 1)


def test_names_places_and_what_a_rank_does_meanwhile() -> None:
    waiting = call(3, state="running", at=-9.0, group=7)
    records = {0: [waiting], 1: [call(2, group=7)], 2: [waiting]}
    told = Told({7: "dp"}, {1: "node2"}, {1: "in section data since 31 s"})
    assert in_words(suspicions(records)[0], 0.0, told).startswith(
        "rank 1 on node2 never entered all_reduce(float32[8], SUM) #3 of group dp: in section data "
        "since 31 s; ranks 0, 2 wait in it since 9.0 s; rank 1 was last in "
    )


def program(rank: int, calls: list[tuple[str, int]], state: str = "running") -> list[Operation]:
    """The calls of one of four ranks, in groups of all, of neighbours (tp) or of those two apart
    (dp), with so many elements; the last one is so."""
    groups = {"all": 0, "tp": 10 + rank // 2, "dp": 20 + rank % 2}
    counts = dict.fromkeys(groups, 0)
    held = []
    for number, (name, elements) in enumerate(calls):
        counts[name] += 1
        made = call(counts[name], group=groups[name], ranks=4 if name == "all" else 2)
        is_last = number == len(calls) - 1
        held.append(
            made._replace(
                number=number,
                elements=elements,
                entered=number - 50.0,
                left=None if is_last else number - 49.9,
                state=state if is_last else "done",
            )
        )
    return held


def test_who_alone_left_out_a_call_that_only_one_other_rank_shares() -> None:
    calls = [("all", 1), ("tp", 2), ("dp", 3), ("all", 4), ("tp", 5), ("dp", 6), ("tp", 7)]
    records = {
        0: program(0, calls[:5]),
        1: program(1, [*calls[:4], *calls[5:]]),
        2: program(2, calls[:7]),
        3: program(3, calls[:7]),
    }
    found = culprit(suspicions(records))
    assert found is not None
    assert (found.kind, found.ranks) == ("astray", (1,))
    assert (found.operation.group, found.operation.sequence, found.operation.elements) == (10, 2, 5)
    assert found.last[1].elements == 6
    assert found.agreeing == (0, 2, 3)
    assert in_words(found).endswith("of group a, each in its groups")
    assert "rank 1 has called" in in_words(found)
    assert "where ranks 0, 2, 3 went on with" in in_words(found)


def test_ranks_in_other_groups_make_other_calls() -> None:
    records = {
        0: [call(1), call(2, state="running", at=-2.0)],
        1: [call(1), call(2, state="running", at=-2.0)],
        2: [call(1), call(1, "barrier", group=7, ranks=2), call(2, state="running", at=-2.0)],
        3: [call(1)],
    }
    found = culprit(suspicions(records))
    assert found is not None
    assert (found.kind, found.ranks) == ("missing", (3,))


def test_a_root_that_went_on_is_named_where_ranks_differ() -> None:
    """Nobody waits in the broadcast any more, and what comes next has failed."""
    after = [call(2, state="failed", at=-1.0)]
    records = {rank: [call(1, "broadcast"), *after] for rank in (0, 1, 2)}
    records[3] = [call(1, "broadcast")._replace(root=3), *after]
    found = culprit(suspicions(records))
    assert found is not None
    assert (found.kind, found.ranks, found.agreeing, found.waiting) == (
        *("mismatch", (3,), (0, 1, 2)),
        (),
    )
    assert found.is_by_most
    assert in_words(found, 0.0) == (
        "rank 3 has called broadcast(float32[8], root 3) #1 of the default group, where others "
        "have called broadcast(float32[8], root 0) #1 of the default group"
    )
