"""A suspended group of the native backend gives back memory that it keeps for later."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from support.suite.cases import LONG
from support.worlds import run_threads

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.backends.native.backend import NativeBackend
from torsh_runtime.backends.spares import Spares
from torsh_runtime.errors import CommError, CommTimeout


def body(backend: Any) -> list[int]:
    assert isinstance(backend, NativeBackend)
    spares = Spares()
    backend.suspend(LONG)  # without any
    backend.take_from(spares)
    memory = backend.shared_memory(8192, LONG)
    spares.keep()
    del memory
    spares.close()
    counts = [len(spares._kept)]
    backend.suspend(LONG)
    counts.append(len(spares._kept))
    array = np.ones(4)
    backend.all_reduce(array, ReduceOp.SUM, LONG)
    return [*counts, int(array.max()), backend.shared_memory(4096, LONG).size]


def test_memory_that_nobody_has_taken_goes() -> None:
    assert run_threads(2, body) == [[1, 0, 2, 4096]] * 2


def test_what_was_begun_is_over() -> None:
    def waits(backend: Any) -> bool:
        array = np.ones(1 << 22)
        work = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
        backend.suspend(LONG)
        return bool(work.done())

    assert run_threads(2, waits) == [True] * 2


def test_it_raises_what_the_group_has_ended_with() -> None:
    def ends(backend: Any) -> None:
        backend.abort()
        for call in (backend.suspend, backend.resume):
            with pytest.raises(CommError):
                call(LONG)

    run_threads(2, ends)


def test_a_rank_that_does_not_come_is_named() -> None:
    ended = threading.Event()

    def body(backend: Any) -> None:
        if backend.rank == 1:
            ended.wait(LONG)
            return
        try:
            with pytest.raises(CommTimeout) as caught:
                backend.suspend(0.5)
        finally:
            ended.set()
        assert caught.value.missing == (1,)

    run_threads(2, body)
