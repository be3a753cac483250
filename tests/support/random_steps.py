"""Random work for a group, the same on all its ranks, that checks every number it gets."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

import torsh_runtime as tr
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.group import ProcessGroup

MOST = 120_000
"""Elements of the largest arrays."""

Step = Callable[[ProcessGroup, random.Random], None]


def take_steps(group: ProcessGroup, choose: random.Random, count: int | None = None) -> None:
    """So many steps; None: until one of them raises."""
    while count is None or count > 0:
        choose.choice(STEPS)(group, choose)
        count = None if count is None else count - 1


def size_of(choose: random.Random) -> int:
    return int(MOST ** choose.random())


def total(group: ProcessGroup) -> int:
    """The sum of each rank's number, counted from 1."""
    return group.world_size * (group.world_size + 1) // 2


def all_reduce(group: ProcessGroup, choose: random.Random) -> None:
    dtype = choose.choice(["int64", "float32", "float16", "uint8"])
    array = np.full(size_of(choose), group.rank + 1, dtype)
    group.all_reduce(array)
    assert (array == total(group)).all()


def reduce(group: ProcessGroup, choose: random.Random) -> None:
    root = choose.randrange(group.world_size)
    array = np.full(size_of(choose), group.rank, np.int32)
    group.reduce(array, root, tr.ReduceOp.MAX)
    assert (array == (group.world_size - 1 if group.rank == root else group.rank)).all()


def broadcast(group: ProcessGroup, choose: random.Random) -> None:
    root = choose.randrange(group.world_size)
    array = np.full(size_of(choose), group.rank, np.float64)
    group.broadcast(array, root)
    assert (array == root).all()


def all_gather(group: ProcessGroup, choose: random.Random) -> None:
    sizes = [size_of(choose) for _ in range(group.world_size)]
    gathered = [np.empty(size, np.int16) for size in sizes]
    group.all_gather(gathered, np.full(sizes[group.rank], group.rank, np.int16))
    assert all((part == peer).all() for peer, part in enumerate(gathered))


def all_gather_into_tensor(group: ProcessGroup, choose: random.Random) -> None:
    size = size_of(choose)
    gathered = np.empty((group.world_size, size), np.float32)
    group.all_gather_into_tensor(gathered, np.full(size, group.rank, np.float32))
    assert (gathered == np.arange(group.world_size)[:, None]).all()


def gather(group: ProcessGroup, choose: random.Random) -> None:
    root, size = choose.randrange(group.world_size), size_of(choose)
    parts = [np.empty(size, np.int32) for _ in range(group.world_size)]
    own = np.full(size, group.rank, np.int32)
    group.gather(own, parts if group.rank == root else None, root)
    assert group.rank != root or all((part == peer).all() for peer, part in enumerate(parts))


def scatter(group: ProcessGroup, choose: random.Random) -> None:
    root, size = choose.randrange(group.world_size), size_of(choose)
    parts = [np.full(size, peer, np.int32) for peer in range(group.world_size)]
    part = np.empty(size, np.int32)
    group.scatter(part, parts if group.rank == root else None, root)
    assert (part == group.rank).all()


def reduce_scatter_tensor(group: ProcessGroup, choose: random.Random) -> None:
    size = size_of(choose)
    part = np.empty(size, np.float32)
    group.reduce_scatter_tensor(part, np.repeat(np.arange(group.world_size, dtype="f4"), size))
    assert (part == group.rank * group.world_size).all()


def reduce_scatter(group: ProcessGroup, choose: random.Random) -> None:
    sizes = [size_of(choose) for _ in range(group.world_size)]
    part = np.empty(sizes[group.rank], np.int64)
    group.reduce_scatter(part, [np.full(size, group.rank, np.int64) for size in sizes])
    assert (part == total(group) - group.world_size).all()


def all_to_all(group: ProcessGroup, choose: random.Random) -> None:
    ranks = range(group.world_size)
    sizes = [[size_of(choose) // 10 for _ in ranks] for _ in ranks]
    given = [np.full(size, group.rank, np.int32) for size in sizes[group.rank]]
    got = [np.empty(sizes[peer][group.rank], np.int32) for peer in ranks]
    group.all_to_all(got, given)
    assert all((part == peer).all() for peer, part in enumerate(got))


def all_to_all_single(group: ProcessGroup, choose: random.Random) -> None:
    given = np.full((group.world_size, size_of(choose)), group.rank, np.uint8)
    got = np.empty_like(given)
    group.all_to_all_single(got, given)
    assert (got == np.arange(group.world_size)[:, None]).all()


def ring(group: ProcessGroup, choose: random.Random) -> None:
    size, tag = size_of(choose), choose.randrange(3)
    left = (group.rank - 1) % group.world_size
    given, got = np.full(size, group.rank, np.int64), np.empty(size, np.int64)
    sending = group.send(given, (group.rank + 1) % group.world_size, tag, async_op=True)
    group.recv(got, left, tag)
    sending.wait()
    assert (got == left).all()


def from_any(group: ProcessGroup, choose: random.Random) -> None:
    root, size = choose.randrange(group.world_size), size_of(choose)
    if group.rank != root:
        group.send(np.full(size, group.rank, np.int32), root, 9)
    else:
        for _ in range(group.world_size - 1):
            got = np.empty(size, np.int32)
            source = group.recv(got, None, 9).source
            assert (got == source).all()
    group.barrier()


def many_at_once(group: ProcessGroup, choose: random.Random) -> None:
    arrays = [np.full(size_of(choose), group.rank + 1, np.int64) for _ in range(5)]
    works = [group.all_reduce(array, async_op=True) for array in arrays]
    choose.shuffle(works)
    for work in works:
        work.wait()
    assert all((array == total(group)).all() for array in arrays)


def mixed(group: ProcessGroup, choose: random.Random) -> None:
    """Messages and collectives under way at the same time."""
    size, left = size_of(choose), (group.rank - 1) % group.world_size
    got, array = np.empty(size, np.int8), np.full(size_of(choose), group.rank, np.int32)
    works: list[Work] = [
        group.recv(got, left, 4, async_op=True),
        group.broadcast(array, 0, async_op=True),
        group.send(
            np.full(size, group.rank, np.int8), (group.rank + 1) % group.world_size, 4, True
        ),
        group.barrier(async_op=True),
    ]
    for work in works:
        work.wait()
    assert (got == left).all()
    assert (array == 0).all()


def barrier(group: ProcessGroup, choose: random.Random) -> None:
    group.barrier()


STEPS: list[Step] = [
    all_reduce, reduce, broadcast, all_gather, all_gather_into_tensor, gather, scatter,
    reduce_scatter_tensor, reduce_scatter, all_to_all, all_to_all_single, ring, from_any,
    many_at_once, mixed, barrier,
]  # fmt: skip
