"""Memory that is registered with NCCL is deregistered before it is free, on fake GPUs.

The fake notes a fault if memory is not allocated when it is registered or deregistered.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import fake_cuda, fake_cupy, fake_nccl
from support.fake_gpus import Ranks, by_device
from support.suite.cases import LONG

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.backends.by_device import ByDeviceBackend
from torsh_runtime.backends.nccl.backend import NcclBackend
from torsh_runtime.backends.nccl.registering import Registration
from torsh_runtime.errors import CommError

Run = Callable[..., list[Any]]


@pytest.fixture
def run(fake_ranks: Ranks) -> Run:
    """run(body): body(backend) on two ranks."""
    return lambda body, count=2: fake_ranks.run(count, body)


def full(size: int, value: float) -> Any:
    return fake_cupy.asarray(np.full(size, value, "float32"))


def registered(backend: Any, array: Any) -> Registration:
    made = backend.register_memory(array.data.ptr, array.nbytes, array)
    assert isinstance(made, Registration)
    assert made.is_valid
    return made


def test_memory_is_kept_until_it_is_deregistered(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        array, over = full(64, 1), threading.Event()
        block = weakref.ref(array.block)
        registration = registered(backend, array)
        backend.barrier(LONG)
        fake_cuda.machine().put(fake_cupy.current_queue(), over.is_set)
        backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
        registration.close()
        del array
        backend._sweep()
        assert registration.is_valid, "the GPU still has it"
        over.set()
        backend.barrier(LONG)
        backend._flights.sweep(backend._check_communicator)
        backend._sweep()
        assert not registration.is_valid
        del registration
        assert block() is None

    run(body)


@pytest.mark.parametrize("ending", ["abort", "close"])
def test_it_is_deregistered_when_the_group_ends(run: Run, ending: str) -> None:
    def body(backend: NcclBackend) -> None:
        array = full(64, 1)
        backend.all_reduce(array, ReduceOp.SUM, LONG)
        array.get()
        registration = registered(backend, array)
        block = weakref.ref(array.block)
        del array
        backend.barrier(LONG)
        getattr(backend, ending)()
        assert not registration.is_valid
        registration.close()  # as a finalizer may, later
        del registration
        assert block() is None

    run(body)


def test_suspending_deregisters_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_nccl, "release", (2, 29, 7))

    def body(backend: NcclBackend) -> None:
        array = full(64, 1)
        backend.all_reduce(array, ReduceOp.SUM, LONG)
        registration = registered(backend, array)
        backend.suspend(LONG)
        assert not registration.is_valid
        assert backend.register_memory(array.data.ptr, array.nbytes, array) is None
        backend.resume(LONG)
        registered(backend, array).close()

    run(body)


def test_before_there_is_a_communicator_nothing_is_registered(fake_ranks: Ranks) -> None:
    def body(backend: ByDeviceBackend) -> None:
        array = full(4, 1)
        assert backend.register_memory(array.data.ptr, array.nbytes, array) is None
        backend.all_reduce(array, ReduceOp.SUM, LONG)
        registered(backend, array).close()

    fake_ranks.run(2, body, by_device)


def test_a_rank_that_cannot_register_ends_the_group(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, buffer: Any) -> None:
        raise fake_nccl.NCCLError("unhandled system error")

    monkeypatch.setattr(fake_nccl.Communicator, "register_buffer", refuse)

    def body(backend: NcclBackend) -> None:
        array = full(4, 1)
        backend.barrier(LONG)
        if backend.rank == 0:
            with pytest.raises(CommError, match="failed in register_memory"):
                backend.register_memory(array.data.ptr, array.nbytes, array)
        while not backend.failed:
            with pytest.raises(CommError):
                backend.barrier(LONG)

    run(body)
