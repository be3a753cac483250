"""Which calls of ranks become operations, and in which order."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch", reason="needs torch")

from torsh_runtime.integrations.horovod.torch.calls import (
    Call,
    CallTable,
    Matched,
    Message,
    Operand,
)

ONE = (Operand("float32", (3,), "cpu"),)


def call(name: str, operands: tuple[Operand, ...] = ONE, **facts: object) -> Call:
    return Call("allreduce", name, operands, **{"op": "Sum", **facts})  # type: ignore[arg-type]


def turn(table: CallTable, *names: str, joined: tuple[int, ...] = ()) -> list[str]:
    """A turn in which each rank calls the names in its text; what is carried out."""
    told = [
        Message([call(each) for each in text.split()], rank in joined, None)
        for rank, text in enumerate(names)
    ]
    table.add(told)
    return [key[1] for key, _ in table.take()]


def test_calls_wait_for_the_last_rank() -> None:
    table = CallTable(3)
    assert turn(table, "a b", "b", "") == []
    assert turn(table, "", "a", "b c") == ["b"]
    assert turn(table, "c", "c", "a") == ["a", "c"]


def test_all_ranks_carry_out_everything_in_one_order() -> None:
    random.seed(0)
    tables = [CallTable(3) for _ in range(3)]
    orders = [random.sample(range(50), 50) for _ in range(3)]
    done: list[list[str]] = [[], [], []]
    while any(orders):
        texts = []
        for order in orders:
            count = random.randrange(4)
            texts.append(" ".join(map(str, order[:count])))
            del order[:count]
        for table, own in zip(tables, done, strict=True):
            own += turn(table, *texts)
    assert done[0] == done[1] == done[2]
    assert sorted(map(int, done[0])) == [*range(50)]


def test_ranks_that_joined_are_not_waited_for() -> None:
    table = CallTable(2)
    assert turn(table, "a", "") == []
    assert turn(table, "", "", joined=(1,)) == ["a"]
    assert not table.all_joined()
    assert turn(table, "b", "", joined=(1,)) == ["b"]
    assert turn(table, "", "", joined=(0, 1)) == []
    assert table.all_joined()
    assert table.clear_joined() == 0
    assert turn(table, "a", "") == []


def test_ranks_that_wait_for_each_other_are_found() -> None:
    table = CallTable(3)
    a, b = call("a"), call("b")
    table.add([Message([a], False, a.key), Message([b], False, b.key), Message([], False, None)])
    assert table.take() == []
    assert not table.is_stuck()
    table.add([Message([], False, a.key), Message([], False, b.key), Message([a], False, a.key)])
    assert table.is_stuck()
    error = table.stuck_error(1)
    assert (error.rank, error.other_rank) == (1, 0)
    assert "rank 1 called allreduce('b', float32[3], op=Sum), rank 0 called allreduce('a'" in str(
        error
    )
    table.clear()
    assert not table.is_stuck()


@pytest.mark.parametrize(
    "other",
    [
        call("a", (Operand("float32", (4,), "cpu"),)),
        call("a", (Operand("float64", (3,), "cpu"),)),
        call("a", (Operand("float32", (3,), "cuda"),)),
        call("a", ONE * 2),
        call("a", op="Average"),
        call("a", prescale=2.0),
        call("a", root=1),
    ],
)
def test_calls_that_differ_are_told(other: Call) -> None:
    matched = Matched(other.key, {0: call("a"), 1: call("a"), 2: other})
    told = [matched.mismatch(rank) for rank in range(3)]
    assert [(each.rank, each.other_rank) for each in told if each] == [(0, 2), (0, 2), (2, 0)]
    assert Matched(other.key, {0: call("a"), 1: call("a")}).mismatch(0) is None


def test_the_first_dimension_may_differ_where_rows_are_moved() -> None:
    def gather(*shape: int) -> Call:
        return Call("allgather", "a", (Operand("float32", shape, "cpu"),))

    assert Matched(("allgather", "a"), {0: gather(1, 2), 1: gather(5, 2)}).mismatch(0) is None
    assert Matched(("allgather", "a"), {0: gather(1, 2), 1: gather(1, 3)}).mismatch(0) is not None
