"""Operations that are waited for later."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from support.suite.cases import LONG, Suite

from torsh_runtime.backends.base import Backend, ReduceOp
from torsh_runtime.backends.work import Work
from torsh_runtime.errors import CommError, CommTimeout

SUITE = Suite()


@SUITE.case()
def many_operations_at_a_time(backend: Backend) -> None:
    ranks = backend.world_size
    arrays = [np.full(1 + 997 * k % 3000, k, np.int64) for k in range(60)]
    works = [backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True) for array in arrays]
    for work in reversed(works):
        assert work.wait()
        assert work.done()
        assert work.exception() is None
    for k, array in enumerate(arrays):
        assert (array == k * ranks).all()


@SUITE.case()
def operations_of_every_kind_at_a_time(backend: Backend) -> None:
    ranks, rank = backend.world_size, backend.rank
    total, copy, part = np.ones(3000, np.float16), np.full(500, rank), np.zeros(40)
    gathered, swapped = np.zeros((ranks, 70)), np.zeros(ranks, np.int64)
    works = [
        backend.all_reduce(total, ReduceOp.SUM, LONG, True),
        backend.broadcast(copy, ranks - 1, LONG, True),
        backend.reduce_scatter(part, np.full(40 * ranks, 2.0), ReduceOp.AVG, LONG, True),
        backend.all_gather(gathered, np.full(70, float(rank)), LONG, True),
        backend.all_to_all(swapped, np.full(ranks, rank), LONG, True),
        backend.barrier(LONG, True),
    ]
    for work in works:
        work.wait()
    assert (total == ranks).all()
    assert (copy == ranks - 1).all()
    assert (part == 2).all()
    assert (gathered == np.arange(ranks)[:, None]).all()
    assert (swapped == np.arange(ranks)).all()


@SUITE.case()
def nobody_need_wait_for_an_operation(backend: Backend) -> None:
    for size in range(1000, 21_000, 1000):
        backend.all_reduce(np.ones(size), ReduceOp.SUM, LONG, async_op=True)
    for _ in range(10):
        array = np.ones(20_000)
        backend.all_reduce(array, ReduceOp.SUM, LONG)
        assert (array == backend.world_size).all()


@SUITE.case()
def strided_arrays_are_filled_when_it_is_done(backend: Backend) -> None:
    grid = np.ones((200, 6), np.float32)
    assert backend.all_reduce(grid[:, ::2], ReduceOp.SUM, LONG, async_op=True).wait()
    assert (grid[:, ::2] == backend.world_size).all()
    assert (grid[:, 1::2] == 1).all()


@SUITE.case()
def callbacks_are_called_once(backend: Backend) -> None:
    seen: list[Work] = []
    called = threading.Event()

    def callback(work: Work) -> None:
        assert work.done()
        seen.append(work)
        called.set()

    work = backend.all_reduce(np.ones(10), ReduceOp.SUM, LONG, async_op=True)
    work.add_done_callback(callback)
    work.wait()
    assert called.wait(LONG)
    assert seen == [work]
    work.add_done_callback(callback)
    assert seen == [work, work]


@SUITE.case(ranks=2)
def a_wait_that_ends_early_leaves_the_operation_alone(backend: Backend) -> None:
    array = np.ones(1000)
    if backend.rank == 0:
        work = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
        with pytest.raises(CommTimeout):
            work.wait(0.05)
        assert not backend.failed
        assert not work.done()
        backend.send(np.zeros(1), 1, 0, LONG)
        assert work.wait()
    elif backend.rank == 1:
        backend.recv(np.zeros(1), 0, 0, LONG)
        backend.all_reduce(array, ReduceOp.SUM, LONG)
    else:
        backend.all_reduce(array, ReduceOp.SUM, LONG)
    assert (array == backend.world_size).all()


@SUITE.case(ranks=2)
def done_tells_without_waiting(backend: Backend) -> None:
    array = np.ones(100_000)
    work = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
    limit = time.monotonic() + LONG
    while not work.done():
        assert time.monotonic() < limit
        time.sleep(0.001)
    assert (array == backend.world_size).all()


@SUITE.case(ranks=2)
def work_has_the_methods_of_torch(backend: Backend) -> None:
    array = np.ones(100_000)
    work = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True).giving((array,))
    doubled = work.get_future().then(lambda future: 2 * future.value()[0][0])
    work.synchronize()
    assert work.is_completed()
    assert work.is_success()
    assert work.result()[0] is array
    assert work.source_rank() == -1
    assert work.get_future().wait(LONG)[0] is array
    assert doubled.wait(LONG) == 2 * backend.world_size


@SUITE.case(ranks=2)
def the_future_of_what_fails_fails(backend: Backend) -> None:
    work = backend.all_reduce(np.ones(9), ReduceOp.SUM, LONG, async_op=True)
    work.wait()
    backend.barrier(LONG)
    if backend.rank == 0:
        backend.abort()
    with pytest.raises(CommError):  # noqa: PT012  (which of the two raises depends on the moment)
        late = backend.recv(np.ones(9), (backend.rank + 1) % backend.world_size, 5, LONG, True)
        late.get_future().wait()
