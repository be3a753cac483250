"""Messages between two ranks."""

from __future__ import annotations

import numpy as np
import pytest
from support.suite.cases import DTYPES, LONG, Suite, check_equal, empty, values

from torsh_runtime.backends.base import Backend, ReduceOp

SUITE = Suite()


@SUITE.case(ranks=2)
def a_ring_of_messages(backend: Backend) -> None:
    after, before = _neighbours(backend)
    for dtype in DTYPES:
        for size in (0, 1, 1001):
            backend.send(values(backend.rank, size, dtype), after, 3, LONG)
            array = empty(size, dtype)
            assert backend.recv(array, before, 3, LONG).source in (None, before)
            check_equal(array, values(before, size, dtype))


@SUITE.case(ranks=2)
def large_messages_both_ways(backend: Backend) -> None:
    after, before = _neighbours(backend)
    array = empty(400_001, "float64")
    works = [
        backend.recv(array, before, 0, LONG, async_op=True),
        backend.send(values(backend.rank, 400_001, "float64"), after, 0, LONG, async_op=True),
    ]
    for work in works:
        assert work.wait()
    check_equal(array, values(before, 400_001, "float64"))


@SUITE.case(ranks=2)
def tags_keep_messages_apart(backend: Backend) -> None:
    after, before = _neighbours(backend)
    for tag in (5, 6, 5, 7):
        backend.send(np.array([backend.rank, tag]), after, tag, LONG)
    for tag in (7, 5, 6, 5):
        array = np.zeros(2, np.int64)
        backend.recv(array, before, tag, LONG)
        assert array.tolist() == [before, tag]


@SUITE.case(ranks=2)
def messages_with_one_tag_arrive_in_order(backend: Backend) -> None:
    after, before = _neighbours(backend)
    for number in range(100):
        backend.send(np.array([number]), after, 1, LONG)
    array = np.zeros(1, np.int64)
    for number in range(100):
        backend.recv(array, before, 1, LONG)
        assert array[0] == number


@SUITE.case(ranks=2)
def messages_from_anyone_say_who_sent_them(backend: Backend) -> None:
    if backend.rank:
        backend.send(np.full(9, backend.rank), 0, 4, LONG)
        return
    seen = set()
    for _ in range(1, backend.world_size):
        array = np.zeros(9, np.int64)
        source = backend.recv(array, None, 4, LONG).source
        assert (array == source).all()
        seen.add(source)
    assert seen == set(range(1, backend.world_size))


@SUITE.case(ranks=2)
def unmatched_messages_of_64_kib_do_not_block(backend: Backend) -> None:
    after, before = _neighbours(backend)
    halves = np.full(32 << 10, backend.rank, np.uint8)
    backend.send(halves, after, 1, LONG)
    backend.send(halves, after, 2, LONG)
    backend.barrier(LONG)
    for tag in (2, 1):
        array = np.zeros(32 << 10, np.uint8)
        backend.recv(array, before, tag, LONG)
        assert (array == before).all()


@SUITE.case(ranks=2)
def a_sent_array_may_be_changed_at_once(backend: Backend) -> None:
    after, before = _neighbours(backend)
    array = np.full(1000, backend.rank)
    backend.send(array, after, 0, LONG)
    array[:] = -1
    backend.barrier(LONG)
    backend.recv(array, before, 0, LONG)
    assert (array == before).all()


@SUITE.case(ranks=2)
def strided_messages(backend: Backend) -> None:
    after, before = _neighbours(backend)
    backend.send(np.arange(100)[::-3] + backend.rank, after, 0, LONG)
    grid = np.zeros((34, 2), np.int64)
    backend.recv(grid[:, 1], before, 0, LONG)
    assert (grid[:, 1] == np.arange(100)[::-3] + before).all()
    assert not grid[:, 0].any()


@SUITE.case(ranks=2)
def messages_pass_collectives(backend: Backend) -> None:
    after, before = _neighbours(backend)
    array, total = np.zeros(5000), np.ones(5000)
    arrives = backend.recv(array, before, 9, LONG, async_op=True)
    backend.all_reduce(total, ReduceOp.SUM, LONG)
    backend.send(np.full(5000, float(backend.rank)), after, 9, LONG)
    assert arrives.wait()
    assert (array == before).all()
    assert (total == backend.world_size).all()
    assert arrives.source in (None, before)


@SUITE.case()
def ranks_that_are_none_are_refused(backend: Backend) -> None:
    for peer in (-1, backend.world_size):
        with pytest.raises(ValueError, match="rank"):
            backend.send(np.zeros(1), peer, 0, LONG)
        with pytest.raises(ValueError, match="rank"):
            backend.recv(np.zeros(1), peer, 0, LONG)
    backend.barrier(LONG)


def _neighbours(backend: Backend) -> tuple[int, int]:
    ranks = backend.world_size
    return (backend.rank + 1) % ranks, (backend.rank - 1) % ranks
