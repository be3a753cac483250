"""A suspended group of the native backend gives back memory that it keeps for later."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.suite.cases import LONG
from support.worlds import run_threads

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.backends.native.backend import NativeBackend
from torsh_runtime.backends.spares import Spares


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
