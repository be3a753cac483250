"""Stand-ins for a backend, which see each operation before it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.base import (
    PATIENCE,
    Backend,
    Envelope,
    Facts,
    MeetingStore,
    Registration,
)
from torsh_runtime.backends.operation import Op, Reduce
from torsh_runtime.backends.spares import Spares
from torsh_runtime.backends.work import Work
from torsh_runtime.enumerations import OPERATIONS
from torsh_runtime.monitoring.calls import Tell, own_calls


class Intercepting(Backend):
    """Stands for a backend: all operations come to `run`, and all else goes to the backend."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend.rank, backend.world_size)
        self.type = backend.type
        self._backend = backend

    @property
    def members(self) -> Sequence[Backend]:
        return self._backend.members

    def name_ranks(self, names: Sequence[str], axis: str) -> None:
        self._backend.name_ranks(names, axis)

    def note_as(self, name: str, job_ranks: Sequence[int] = ()) -> None:
        self._backend.note_as(name, job_ranks)

    def note_title(self, title: str) -> None:
        self._backend.note_title(title)

    def take_from(self, spares: Spares) -> None:
        self._backend.take_from(spares)

    @property
    def job_ranks(self) -> Sequence[int]:
        return self._backend.job_ranks

    @property
    def failed(self) -> bool:
        return self._backend.failed

    def all_reduce_coalesced(
        self, arrays: Sequence[object], op: Reduce, timeout: float, async_op: bool = False
    ) -> list[Work]:
        return self._backend.all_reduce_coalesced(arrays, op, timeout, async_op)

    def all_gather_numbers(self, own: NDArray[np.int64], timeout: float) -> NDArray[np.int64]:
        return self._backend.all_gather_numbers(own, timeout)

    def probe(
        self, src: int | None, tag: int | None, timeout: float, wait: bool = True
    ) -> Envelope | None:
        return self._backend.probe(src, tag, timeout, wait)

    @property
    def facts(self) -> Facts:
        return self._backend.facts

    def all_come(self, array: object) -> bool:
        return self._backend.all_come(array)

    def in_order(self, call: Callable[[], None], async_op: bool = False) -> Work:
        return self._backend.in_order(call, async_op)

    def coalescing(self, timeout: float = PATIENCE) -> AbstractContextManager[object]:
        return self._backend.coalescing(timeout)

    def shared_memory(self, num_bytes: int, timeout: float) -> NDArray[np.uint8]:
        return self._backend.shared_memory(num_bytes, timeout)

    def common_memory(self, num_bytes: int, timeout: float) -> memoryview | None:
        return self._backend.common_memory(num_bytes, timeout)

    def subgroup(
        self, store: MeetingStore, name: str, ranks: Sequence[int], timeout: float
    ) -> Backend | None:
        return self._backend.subgroup(store, name, ranks, timeout)

    def register_memory(self, address: int, num_bytes: int, owner: object) -> Registration | None:
        return self._backend.register_memory(address, num_bytes, owner)

    def suspend(self, timeout: float) -> None:
        self._backend.suspend(timeout)

    def resume(self, timeout: float) -> None:
        self._backend.resume(timeout)

    def abort(self) -> None:
        self._backend.abort()

    def close(self) -> None:
        self._backend.close()


class _Told(Intercepting):
    """Tells of each collective and message."""

    def __init__(self, backend: Backend, tell: Tell) -> None:
        super().__init__(backend)
        self._tell = tell

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        if op.kind in OPERATIONS:
            reduction = (op.reduction,) if "reduction" in op.takes else ()
            self._tell(op.kind, (*op.arrays.values(), *reduction), self.world_size)
        return op.begin(self._backend, timeout, async_op)

    def all_reduce_coalesced(
        self, arrays: Sequence[object], op: Reduce, timeout: float, async_op: bool = False
    ) -> list[Work]:
        self._tell("all_reduce_coalesced", (arrays, op), self.world_size)
        return super().all_reduce_coalesced(arrays, op, timeout, async_op)


def seen(backend: Backend) -> Backend:
    """Give the backend, or what stands for it as long as somebody looks at this process's calls."""
    tell = own_calls().tell
    return backend if tell is None else _Told(backend, tell)
