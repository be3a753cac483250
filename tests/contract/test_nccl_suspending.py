"""A group gives its memory on GPUs back until its next operation, on fake GPUs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support import fake_cuda, fake_cupy, fake_nccl
from support.fake_gpus import Jobs, Ranks, by_device
from support.forked import Raised
from support.suite.cases import LONG

from torsh_runtime.backends.base import BackendType, ReduceOp
from torsh_runtime.backends.by_device import ByDeviceBackend
from torsh_runtime.backends.nccl.backend import NcclBackend
from torsh_runtime.errors import CommError, CommTimeout
from torsh_runtime.job_group import JobGroup

Run = Callable[..., list[Any]]


@pytest.fixture
def run(fake_ranks: Ranks) -> Run:
    """run(body): body(backend) on two ranks."""
    return lambda body, count=2: fake_ranks.run(count, body)


@pytest.fixture
def suspends(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL is of a version that can suspend communicators."""
    monkeypatch.setattr(fake_nccl, "release", (2, 29, 7))


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    monkeypatch.setenv("TORSH_SHARE_ARRAYS", "0")  # ranks that are threads have one allocator
    made = Jobs()
    yield made
    made.close()


def full(size: int, value: float) -> Any:
    return fake_cupy.asarray(np.full(size, value, "float32"))


def is_suspended(backend: NcclBackend) -> bool:
    communicator: Any = backend._communicator
    return bool(communicator._clique.suspended.get(backend.rank))


def summed(backend: Any) -> float:
    array = full(4, 1)
    backend.all_reduce(array, ReduceOp.SUM, LONG)
    return float(array.get().max())


@pytest.mark.usefixtures("suspends")
def test_the_next_operation_takes_it_again(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        for _ in range(3):
            assert summed(backend) == 2
            assert backend._own.free
            backend.suspend(LONG)
            assert is_suspended(backend)
            assert not backend._own.free
            backend.suspend(LONG)  # it is already
        work = backend.all_reduce(array := full(4, 3), ReduceOp.SUM, LONG, async_op=True)
        assert not is_suspended(backend)
        work.wait()
        assert (array.get() == 6).all()
        backend.suspend(LONG)

    run(body)


@pytest.mark.usefixtures("suspends")
def test_it_comes_after_what_is_under_way(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        over = threading.Event()
        fake_cuda.machine().put(fake_cupy.current_queue(), over.is_set)
        array = full(4, 1)
        backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
        backend.all_reduce(array, ReduceOp.SUM, LONG)
        threading.Timer(0.1, over.set).start()
        backend.suspend(LONG)
        assert not backend._flights
        assert (array.get() == 4).all()

    run(body)


@pytest.mark.usefixtures("suspends")
@pytest.mark.parametrize("first", ["block", "barrier", "numbers", "resume"])
def test_all_kinds_of_operations_take_it_again(run: Run, first: str) -> None:
    def body(backend: NcclBackend) -> None:
        summed(backend)
        backend.suspend(LONG)
        if first == "block":
            with backend.coalescing():
                work = backend.all_reduce(array := full(4, 1), ReduceOp.SUM, LONG, async_op=True)
            work.wait()
            assert (array.get() == 2).all()
        elif first == "numbers":
            own = np.array([backend.rank], np.int64)
            assert backend.all_gather_numbers(own, LONG).ravel().tolist() == [0, 1]
        else:
            (backend.barrier if first == "barrier" else backend.resume)(LONG)
        assert not is_suspended(backend)
        assert summed(backend) == 2

    run(body)


@pytest.mark.usefixtures("suspends")
@pytest.mark.parametrize("op", ["suspend", "resume", "a block"])
def test_a_rank_that_does_not_come_is_named(run: Run, op: str) -> None:
    ended = threading.Event()

    def body(backend: NcclBackend) -> str:
        summed(backend)
        if op != "suspend":
            backend.suspend(LONG)
        if backend.rank == 1:
            assert ended.wait(LONG)
            return ""
        blocks: Any = {"a block": lambda timeout: backend.coalescing(timeout).__enter__()}
        come = blocks.get(op) or getattr(backend, op)
        try:
            with pytest.raises(CommTimeout) as caught:
                come(0.5)
        finally:
            ended.set()
        assert caught.value.missing == (1,)
        with pytest.raises(CommTimeout):
            summed(backend)
        return str(caught.value)

    assert {"a block": "resume"}.get(op, op) in run(body)[0]


@pytest.mark.usefixtures("suspends")
def test_a_suspended_communicator_is_asked_nothing(fake_ranks: Ranks) -> None:
    """The fake notes a fault if it is, while another group is watched."""

    def body(backend: NcclBackend) -> None:
        summed(backend)
        other = fake_ranks.connect(BackendType.NCCL, "other", backend.rank, [0, 1], LONG)
        backend.suspend(LONG)
        over = threading.Event()
        fake_cuda.machine().put(fake_cupy.current_queue(), over.is_set)
        other.all_reduce(full(4, 1), ReduceOp.SUM, LONG, async_op=True)
        time.sleep(0.3)
        over.set()
        other.close()
        assert summed(backend) == 2

    fake_ranks.run(2, body)


def test_nccl_that_cannot_keeps_its_buffers(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        summed(backend)
        backend.suspend(LONG)
        assert not backend._own.free
        assert not is_suspended(backend)
        assert summed(backend) == 2

    run(body)


@pytest.mark.usefixtures("suspends")
def test_pairs_of_ranks_are_suspended_too(fake_ranks: Ranks) -> None:
    def body(backend: ByDeviceBackend) -> None:
        rank = backend.rank
        for peer in range(3):  # each two ranks make a communicator
            if peer != rank:
                first, second = (backend.send, backend.recv)
                for call in (first, second) if rank < peer else (second, first):
                    call(full(4, rank), peer, 0, LONG)
        backend.suspend(LONG)
        made = backend._gpu._parts
        assert len(made) == 2
        assert all(each._is_suspended for each in made.values())
        assert summed(backend) == 3
        backend.suspend(LONG)
        assert summed(backend) == 3

    fake_ranks.run(3, body, by_device)


@pytest.mark.usefixtures("suspends")
def test_a_group_suspends_both_of_its_backends(jobs: Jobs) -> None:
    def body(group: JobGroup) -> float:
        group.suspend()  # before there is a communicator
        array, host = full(4, 1), np.ones(4)
        group.all_reduce(array)
        group.suspend()
        group.all_reduce(host)
        group.resume()
        group.all_reduce(array)
        group.suspend()
        return float(array.get().max() + host.max())

    assert jobs.run(["cpu:native,cuda:nccl"] * 2, body) == [6, 6]


@pytest.mark.usefixtures("suspends")
def test_a_group_that_was_aborted_says_so(jobs: Jobs) -> None:
    def body(group: JobGroup) -> None:
        group.all_reduce(full(4, 1))
        group.abort()
        group.suspend()

    for found in jobs.run(["cpu:native,cuda:nccl"] * 2, body):
        assert isinstance(found, Raised)
        assert isinstance(found.error, CommError)


@pytest.mark.usefixtures("suspends")
@pytest.mark.parametrize("call", ["suspend", "resume"])
@pytest.mark.parametrize("kind", ["nccl", "cpu:native,cuda:nccl"])
def test_a_group_without_a_communicator_says_that_it_was_aborted(
    jobs: Jobs, kind: str, call: str
) -> None:
    def body(group: JobGroup) -> None:
        group.abort()
        getattr(group, call)()

    for found in jobs.run([kind] * 2, body):
        assert isinstance(found, Raised)
        assert isinstance(found.error, CommError)


@pytest.mark.usefixtures("suspends")
@pytest.mark.parametrize("call", ["suspend", "resume"])
def test_the_block_of_another_thread_is_not_waited_for_without_a_deadline(
    run: Run, call: str
) -> None:
    def body(backend: NcclBackend) -> None:
        summed(backend)
        is_open, over = threading.Event(), threading.Event()

        def hold() -> None:
            with backend.coalescing():
                is_open.set()
                over.wait(LONG)

        holder = threading.Thread(target=hold)
        holder.start()
        try:
            assert is_open.wait(LONG)
            with pytest.raises(CommTimeout, match=call):
                getattr(backend, call)(0.5)
        finally:
            over.set()
            holder.join()

    run(body)


@pytest.mark.usefixtures("suspends")
def test_an_operation_that_another_thread_suspends_before_takes_it_again(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        summed(backend)
        begin = backend._begin

        def begin_late(*facts: Any) -> Any:
            backend._begin = begin  # type: ignore[method-assign]
            other = threading.Thread(target=backend.suspend, args=(LONG,))
            other.start()
            other.join(LONG)
            return begin(*facts)

        backend._begin = begin_late  # type: ignore[method-assign]
        assert summed(backend) == 2
        assert not is_suspended(backend)

    run(body)


def test_memory_given_up_does_not_wait_for_the_block_of_another_thread(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        summed(backend)
        array = full(4, 1)
        made = backend.register_memory(array.data.ptr, 16, array)
        assert made is not None
        made.close()
        is_open, over = threading.Event(), threading.Event()

        def hold() -> None:
            with backend.coalescing():
                is_open.set()
                over.wait(LONG)

        holder = threading.Thread(target=hold)
        holder.start()
        assert is_open.wait(LONG)
        began = time.monotonic()
        sweeper = threading.Thread(target=backend._sweep)
        sweeper.start()
        sweeper.join(5)
        is_over = not sweeper.is_alive()
        over.set()
        holder.join()
        assert is_over, time.monotonic() - began
        backend._sweep()
        assert not made.is_valid

    run(body)
