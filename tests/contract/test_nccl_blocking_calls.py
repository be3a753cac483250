"""Calls of the nccl backend without `async_op` run on the caller's stream, on fake GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from support import fake_cuda, fake_cupy, fake_nccl
from support.fake_gpus import Ranks
from support.suite.cases import LONG

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.backends.nccl.backend import NcclBackend
from torsh_runtime.backends.nccl.flights import Flight
from torsh_runtime.errors import CommTimeout

Run = Callable[..., list[Any]]


@pytest.fixture
def run(fake_ranks: Ranks) -> Run:
    """run(body): body(backend) on two ranks."""
    return lambda body, count=2: fake_ranks.run(count, body)


def full(size: int, value: float, dtype: str = "float32") -> Any:
    return fake_cupy.asarray(np.full(size, value, dtype))


@contextmanager
def noted(owner: Any, *names: str) -> Iterator[list[tuple[str, int, Any]]]:
    """Note this thread's calls of methods, with the device and the arguments."""
    calls: list[tuple[str, int, Any]] = []
    here = threading.get_ident()
    real = {name: getattr(owner, name) for name in names}

    def noting(name: str) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == here:
                calls.append((name, getattr(self, "_handle", -1), args))
            return real[name](self, *args, **kwargs)

        return call

    for name in names:
        setattr(owner, name, noting(name))
    try:
        yield calls
    finally:
        for name in names:
            setattr(owner, name, real[name])


def alone(run: Run, body: Callable[[NcclBackend], None]) -> None:
    """Run it in a group of one rank, where nothing else calls the fakes."""
    run(body, 1)


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_they_take_no_stream_of_the_groups_and_no_wait(run: Run, dtype: str) -> None:
    def body(backend: NcclBackend) -> None:
        with fake_cupy.cuda.Stream(non_blocking=True) as own:
            array = full(8, 3, dtype)
            backend.all_reduce(array, ReduceOp.SUM, LONG)  # prepares further ones
            with (
                noted(fake_cuda.Stream, "record", "wait") as calls,
                noted(fake_cuda.Device, "create_event") as created,
                noted(fake_nccl.Communicator, "_launch") as launched,
            ):
                backend.all_reduce(array, ReduceOp.SUM, LONG)
            assert [(name, handle) for name, handle, _ in calls] == [("record", own.ptr)] * 2
            assert [args[0].handle for _, _, args in launched] == [own.ptr]
            assert not created
            assert (array.get() == 3).all()

    alone(run, body)


def test_begun_ones_still_have_the_groups_stream(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        array = full(8, 3)
        with noted(fake_nccl.Communicator, "_launch") as launched:
            backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True).wait()
            with backend.coalescing():
                backend.all_reduce(array, ReduceOp.SUM, LONG)
        assert [args[0].handle for _, _, args in launched] == [backend._own.handle] * 2

    alone(run, body)


@pytest.mark.parametrize("is_strided", [False, True])
def test_they_are_in_turn_with_begun_ones_and_other_streams(run: Run, is_strided: bool) -> None:
    def body(backend: NcclBackend) -> None:
        array = full(16, 1)
        part = array[::2] if is_strided else array
        over = threading.Event()
        fake_cuda.machine().put(fake_cupy.current_queue(), over.is_set)
        for _ in range(3):
            work = backend.all_reduce(part, ReduceOp.SUM, LONG, async_op=True)
            work.wait()
            backend.all_reduce(part, ReduceOp.SUM, LONG)
            part /= 2
        over.set()
        assert (part.get() == 8).all()
        if is_strided:
            assert (array.get()[1::2] == 1).all()
        backend.barrier(LONG)

    run(body)


@pytest.mark.parametrize("ends_by", ["a call", "closing"])
def test_a_peer_that_does_not_come_is_named(run: Run, ends_by: str) -> None:
    ended = threading.Event()

    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        if backend.rank == 1:
            assert ended.wait(LONG)
            return
        array = full(4, 7)
        try:
            backend.all_reduce(array, ReduceOp.SUM, 0.5)  # which only its stream waits for
            array.get()
            again = partial(backend.all_reduce, array, ReduceOp.SUM, 0.5)
            with pytest.raises(CommTimeout) as caught:
                (backend.close if ends_by == "closing" else again)()
        finally:
            ended.set()
        assert caught.value.missing == (1,)

    run(body)


def test_streams_that_depend_on_the_thread_keep_the_arrays() -> None:
    for handle, held in ((2, [1]), (0, ())):
        flight = Flight("all_reduce", 1, operands=[1])
        flight.be_on_callers_stream(handle)
        assert flight.is_awaited
        assert flight.operands == held
