"""Ranks that call different things: an error that names both, in a node and between nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.hosts import needs_hosts, plugged, run_on_hosts

import torsh_runtime as tr
from torsh_runtime.backends.native.settings import STRATEGIES, STRATEGY_VARIABLE
from torsh_runtime.comm.group import ProcessGroup

RANKS = 3
ODD = 2
"""Who calls something else than the others."""
Call = Callable[[ProcessGroup], object]


class Case(NamedTuple):
    """What the others call, and what the odd one does."""

    name: str
    usual: Call
    odd: Call


def z(size: int | tuple[int, ...], dtype: str = "f8") -> np.ndarray[Any, Any]:
    return np.zeros(size, dtype)


def rows(sizes: list[int], dtype: str = "f8") -> list[object]:
    return [z(size, dtype) for size in sizes]


def all_reduce(size: Any = 4, dtype: str = "f8", op: Any = tr.ReduceOp.SUM) -> Call:
    return lambda group: group.all_reduce(z(size, dtype), op)


def all_reduce_coalesced(sizes: list[int]) -> Call:
    def call(group: ProcessGroup) -> None:
        with tr.coalesce(group):
            for size in sizes:
                group.all_reduce(z(size))

    return call


def reduce(size: int = 4, dtype: str = "f8", root: int = 0, op: Any = tr.ReduceOp.SUM) -> Call:
    return lambda group: group.reduce(z(size, dtype), root, op)


def broadcast(size: int = 4, dtype: str = "f8", root: int = 0) -> Call:
    return lambda group: group.broadcast(z(size, dtype), root)


def all_gather_into(size: int = 4, dtype: str = "f8") -> Call:
    return lambda group: group.all_gather_into_tensor(z(size * RANKS, dtype), z(size, dtype))


def all_gather(sizes: list[int], dtype: str = "f8") -> Call:
    return lambda group: group.all_gather(rows(sizes, dtype), z(sizes[group.rank], dtype))


def gather(size: int = 4, dtype: str = "f8", root: int = 0) -> Call:
    def call(group: ProcessGroup) -> None:
        parts = rows([size] * RANKS, dtype) if group.rank == root else None
        group.gather(z(size, dtype), parts, root)

    return call


def scatter(size: int = 4, dtype: str = "f8", root: int = 0) -> Call:
    def call(group: ProcessGroup) -> None:
        parts = rows([size] * RANKS, dtype) if group.rank == root else None
        group.scatter(z(size, dtype), parts, root)

    return call


def reduce_scatter_tensor(size: int = 4, dtype: str = "f8", op: Any = tr.ReduceOp.SUM) -> Call:
    return lambda group: group.reduce_scatter_tensor(z(size, dtype), z(size * RANKS, dtype), op)


def reduce_scatter(sizes: list[int], op: Any = tr.ReduceOp.SUM) -> Call:
    return lambda group: group.reduce_scatter(z(sizes[group.rank]), rows(sizes), op)


def all_to_all_single(size: int = 6, dtype: str = "f8") -> Call:
    return lambda group: group.all_to_all_single(z(size, dtype), z(size, dtype))


def all_to_all(got: list[int], given: list[int], dtype: str = "f8") -> Call:
    return lambda group: group.all_to_all(rows(got, dtype), rows(given, dtype))


def barrier(group: ProcessGroup) -> None:
    group.barrier()


def in_order(*calls: Call) -> Call:
    return lambda group: [call(group) for call in calls]


BRIEFLY = 1.0
"""Seconds that an operation may take."""
BIG = 600_000
"""Elements that no algorithm treats as little."""
MAX = tr.ReduceOp.MAX

CASES = [
    Case("all_reduce: shape", all_reduce(4), all_reduce(5)),
    Case("all_reduce: same size, other shape", all_reduce((2, 3)), all_reduce(6)),
    Case("all_reduce: dtype", all_reduce(), all_reduce(4, "i8")),
    Case("all_reduce of several", all_reduce_coalesced([3, 5]), all_reduce_coalesced([4, 4])),
    Case("all_reduce: op", all_reduce(), all_reduce(op=MAX)),
    Case("all_reduce, large: shape", all_reduce(BIG), all_reduce(BIG + 1)),
    Case("all_reduce, large: op", all_reduce(BIG), all_reduce(BIG, op=MAX)),
    Case("all_reduce: large and little", all_reduce(BIG), all_reduce(1)),
    Case("all_reduce: another operation", all_reduce(), broadcast()),
    Case("all_reduce: barrier", all_reduce(), barrier),
    Case("barrier: all_reduce", barrier, all_reduce()),
    Case("reduce: shape", reduce(4), reduce(5)),
    Case("reduce: dtype", reduce(), reduce(4, "i8")),
    Case("reduce: op", reduce(), reduce(op=MAX)),
    Case("reduce: root", reduce(), reduce(root=ODD)),
    Case("reduce: another root", reduce(), reduce(root=1)),
    Case("reduce, large: root", reduce(BIG), reduce(BIG, root=ODD)),
    Case("broadcast: shape", broadcast(4), broadcast(5)),
    Case("broadcast: dtype", broadcast(), broadcast(4, "i8")),
    Case("broadcast: root", broadcast(), broadcast(root=ODD)),
    Case("broadcast: another root", broadcast(), broadcast(root=1)),
    Case("broadcast, large: root", broadcast(BIG), broadcast(BIG, root=ODD)),
    Case("broadcast, large: shape", broadcast(BIG), broadcast(BIG + 1)),
    Case("all_gather_into: shape", all_gather_into(4), all_gather_into(5)),
    Case("all_gather_into: dtype", all_gather_into(), all_gather_into(4, "i8")),
    Case("all_gather_into, large: shape", all_gather_into(BIG), all_gather_into(BIG + 1)),
    Case("all_gather: sizes", all_gather([1, 2, 3]), all_gather([1, 2, 4])),
    Case("all_gather: another's size", all_gather([1, 2, 3]), all_gather([2, 2, 3])),
    Case("all_gather: dtype", all_gather([1, 2, 3]), all_gather([1, 2, 3], "i8")),
    Case("all_gather: an array, a list", all_gather_into(4), all_gather([4] * 3)),
    Case("gather: shape", gather(4), gather(5)),
    Case("gather: dtype", gather(), gather(4, "i8")),
    Case("gather: root", gather(), gather(root=ODD)),
    Case("gather: another root", gather(), gather(root=1)),
    Case("scatter: shape", scatter(4), scatter(5)),
    Case("scatter: dtype", scatter(), scatter(4, "i8")),
    Case("scatter: root", scatter(), scatter(root=ODD)),
    Case("scatter: another root", scatter(), scatter(root=1)),
    Case("reduce_scatter_tensor: shape", reduce_scatter_tensor(4), reduce_scatter_tensor(5)),
    Case("reduce_scatter_tensor: dtype", reduce_scatter_tensor(), reduce_scatter_tensor(4, "i8")),
    Case("reduce_scatter_tensor: op", reduce_scatter_tensor(), reduce_scatter_tensor(op=MAX)),
    Case("reduce_scatter: sizes", reduce_scatter([1, 2, 3]), reduce_scatter([1, 3, 3])),
    Case("reduce_scatter: op", reduce_scatter([1, 2, 3]), reduce_scatter([1, 2, 3], MAX)),
    Case("reduce_scatter: an array, a list", reduce_scatter_tensor(4), reduce_scatter([4] * 3)),
    Case("all_to_all_single: shape", all_to_all_single(6), all_to_all_single(9)),
    Case("all_to_all_single: dtype", all_to_all_single(), all_to_all_single(6, "i8")),
    Case("all_to_all: dtype", all_to_all([1] * 3, [1] * 3), all_to_all([1] * 3, [1] * 3, "i8")),
    Case("all_to_all: size", all_to_all([1] * 3, [1] * 3), all_to_all([1] * 3, [2, 1, 1])),
    Case("all_to_all: room", all_to_all([1] * 3, [1] * 3), all_to_all([1, 2, 1], [1] * 3)),
    Case("all_to_all: an array, a list", all_to_all_single(6), all_to_all([2] * 3, [2] * 3)),
    Case("order", in_order(all_reduce(), barrier), in_order(barrier, all_reduce())),
    Case("one too many", in_order(barrier, all_reduce()), in_order(barrier, barrier, all_reduce())),
]  # fmt: skip


def disagree(rank: int) -> list[tuple[str, ...]]:
    """Each case in a group of its own; what came of it, the same on all ranks."""
    return [(case.name, *outcome(case, rank)) for case in CASES]


def outcome(case: Case, rank: int) -> tuple[str, ...]:
    tr.barrier()  # the last case may have ended earlier for some than for others
    group = tr.new_group(timeout=BRIEFLY)
    try:
        (case.odd if rank == ODD else case.usual)(group)
        group.barrier()
    except tr.CommMismatch as error:
        differ = error.call != error.other_call
        names = differ and ODD in (error.rank, error.other_rank)
        return ("mismatch", "names the odd one" if names else "does not name it", str(error))
    except Exception as error:
        return (type(error).__name__, str(error), "")
    finally:
        group.close()
    return ("nothing", "", "")


def wrong(results: list[Any]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """The cases in which some rank did not get an error that names the odd one and what differs."""
    assert all(isinstance(each, list) for each in results), results
    for found in zip(*results, strict=True):
        if {each[1:3] for each in found} != {("mismatch", "names the odd one")}:
            yield found


def test_in_a_node(process_world: Any) -> None:
    assert not list(wrong(process_world(RANKS, disagree, 30.0)))


@needs_hosts
@pytest.mark.netns
def test_between_nodes(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Ranks that all wait for each other, and send nothing, may find out only at the deadline."""
    in_full = request.config.getoption("--soak")
    for strategy in STRATEGIES if in_full else ("adaptive", "standard"):
        monkeypatch.setenv(STRATEGY_VARIABLE, strategy)
        with plugged(2) as hosts:
            results = run_on_hosts([hosts[0], hosts[0], hosts[1]], disagree)
        for found in wrong(results):
            assert {each[1] for each in found} <= {"CommTimeout", "mismatch"}, found
            name = found[0][0]
            assert "root" in name or name == "all_reduce: another operation", found
