"""The suite's cases on a backend that takes arrays on GPUs, cupy's or the fake one's."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import numpy as np
from support import fake_cupy
from support.suite.cases import LONG

from torsh_runtime.backends.base import Backend, BackendType
from torsh_runtime.backends.operation import Op
from torsh_runtime.backends.work import Work


class Staged:
    """Copies of numpy arrays on the current device, laid out as they are; those that share memory
    share it there."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._cupy: Any = sys.modules["cupy"]
        self._pieces: list[tuple[int, int, Any]] = []
        for low, high in _merged([np.lib.array_utils.byte_bounds(array) for array in arrays]):
            self._pieces.append((low, high, self._cupy.asarray(_host_bytes(low, high))))

    def array(self, host: Any) -> Any:
        address = host.__array_interface__["data"][0]
        for low, high, piece in self._pieces:
            if low <= address < high:
                return _view(piece, address - low, host)
        return self._cupy.empty(host.shape, host.dtype)

    def fetch(self, outputs: Sequence[Any]) -> None:
        """Copy the memory of these arrays back, in turn with the current stream."""
        for low, high, piece in self._pieces:
            begins = [output.__array_interface__["data"][0] for output in outputs]
            if any(low <= begin < high for begin in begins):
                _host_bytes(low, high)[:] = piece.get()


class StagedWork(Work):
    """Work whose results are fetched when it is waited for."""

    def __init__(self, inner: Work, staged: Staged, outputs: Sequence[Any]) -> None:
        self._inner = inner
        self._staged = staged
        self._to_fetch = list(outputs)
        self._fetching = threading.Lock()
        """Lets a callback's thread and a waiting one read results only once they are here."""

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        self._inner.wait(timeout)
        self._fetch()  # after what the stream waits for
        return self._inner.wait(LONG)

    def done(self) -> bool:
        over = self._inner.done()
        if over and self._inner.exception() is None:
            self._fetch()
        return over

    def exception(self) -> BaseException | None:
        return self._inner.exception()

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        self._inner.add_done_callback(lambda _: callback(self))

    @property
    def source(self) -> int | None:
        return self._inner.source

    def _fetch(self) -> None:
        with self._fetching:
            outputs, self._to_fetch = self._to_fetch, []
            self._staged.fetch(outputs)


class OnDevice(Backend):
    """A backend that takes numpy arrays to the current device and back."""

    type = BackendType.NCCL

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner.rank, inner.world_size)
        self._inner = inner

    failed = property(lambda self: self._inner.failed)

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        arrays = [*_arrays(op.output), *_arrays(op.input)]
        if not arrays:
            return self._inner.run(op, timeout, async_op)
        staged = Staged(arrays)
        there = op._replace(output=_replaced(op.output, staged), input=_replaced(op.input, staged))
        is_source = op.kind == "broadcast" and op.root == self.rank
        outputs = [] if is_source else _arrays(op.output)
        work = StagedWork(there.begin(self._inner, timeout, async_op), staged, outputs)
        if not async_op:
            work.wait()
        return work

    def coalescing(self, timeout: float = 60.0) -> AbstractContextManager[object]:
        return self._inner.coalescing(timeout)

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None:
        self._inner.close()


def _arrays(given: Any) -> list[Any]:
    if isinstance(given, np.ndarray) and given.dtype.isnative and given.dtype.kind not in "mM":
        return [given]
    if isinstance(given, list | tuple):
        return [array for each in given for array in _arrays(each)]
    return []


def _replaced(given: Any, staged: Staged) -> Any:
    if _arrays(given) and isinstance(given, list | tuple):
        return type(given)(_replaced(each, staged) for each in given)
    return staged.array(given) if _arrays(given) else given


def _merged(bounds: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for low, high in sorted(bounds):
        if found and low < found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        elif high > low:
            found.append((low, high))
    return found


def _host_bytes(low: int, high: int) -> Any:
    return np.frombuffer((ctypes.c_ubyte * (high - low)).from_address(low), np.uint8)


def _view(piece: Any, offset: int, like: Any) -> Any:
    """The elements from `offset` bytes on in memory of a device, laid out as an array."""
    cupy: Any = sys.modules["cupy"]
    if cupy is fake_cupy:
        facts = like.shape, like.dtype, piece.contents, offset, like.strides
        return cupy.ndarray(piece.block, np.ndarray(*facts))
    return cupy.ndarray(like.shape, like.dtype, piece.data + offset, like.strides)
