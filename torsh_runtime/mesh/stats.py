"""Measures a group's operations where they are called."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.intercepting import Intercepting
from torsh_runtime.backends.operation import Op, Reduce
from torsh_runtime.backends.work import Work


@dataclass(frozen=True, slots=True)
class OperationStats:
    """Sums up all calls of one operation on this rank.

    Example:
        ```python
        mesh.measure()
        train()
        print(mesh.stats()["dp"]["all_reduce"].bandwidth)  # bytes per second
        ```
    """

    calls: int = 0
    """Number of calls."""
    bytes: int = 0
    """The larger of input and output of each call, summed."""
    seconds: float = 0.0
    """Time from calls to their completion, including waits for peers."""

    @property
    def latency(self) -> float:
        """Return the average seconds per call."""
        return self.seconds / self.calls if self.calls else 0.0

    @property
    def bandwidth(self) -> float:
        """Return the bytes per second."""
        return self.bytes / self.seconds if self.seconds else 0.0


class Meter:
    """Counts the calls of one group with any backend."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, list[Any]] = {}

    def around(self, backend: Backend) -> Backend:
        """Return a backend that counts its calls, for ProcessGroup.observe()."""
        return _Metered(backend, self)

    def stats(self) -> dict[str, OperationStats]:
        """Return what was counted so far, by operation."""
        with self._lock:
            return {name: OperationStats(*told) for name, told in self._found.items()}

    def add(self, operation: str, calls: int, num_bytes: int, began: float) -> None:
        """Count `calls` completed calls that began together at `began`."""
        seconds = time.perf_counter() - began
        with self._lock:
            told = self._found.setdefault(operation, [0, 0, 0.0])
            told[0] += calls
            told[1] += num_bytes
            told[2] += seconds


class _Metered(Intercepting):
    def __init__(self, backend: Backend, meter: Meter) -> None:
        super().__init__(backend)
        self._meter = meter

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        size, began = max(_bytes(op.output), _bytes(op.input)), time.perf_counter()
        work = op.begin(self._backend, timeout, async_op)

        def count(done: Work) -> None:
            came = _bytes(done.content) if op.kind == "recv_object" else 0
            self._meter.add(op.kind, 1, max(size, came), began)

        if async_op:
            work.add_done_callback(count)
        else:
            count(work)
        return work

    def all_reduce_coalesced(
        self, arrays: Sequence[object], op: Reduce, timeout: float, async_op: bool = False
    ) -> list[Work]:
        """Count as many calls of all_reduce as the backend makes."""
        size, began = _bytes(arrays), time.perf_counter()
        works: list[Work] = self._backend.all_reduce_coalesced(arrays, op, timeout, async_op)
        told = "all_reduce", len(works), size, began
        if works and async_op:
            works[-1].add_done_callback(lambda _: self._meter.add(*told))
        else:
            self._meter.add(*told)
        return works


def _bytes(argument: Any) -> int:
    """Return the bytes of an array, of bytes, or of a list of them; 0 for any other argument."""
    if isinstance(argument, list | tuple):
        return sum(map(_bytes, argument))
    if isinstance(argument, bytes | bytearray):
        return len(argument)
    return int(getattr(argument, "nbytes", 0))
