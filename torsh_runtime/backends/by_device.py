"""Combines two backends in one group: each operation goes to the one for its arrays' device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import cast

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.base import (
    PATIENCE,
    Backend,
    ByDevice,
    Envelope,
    Facts,
    Reduce,
    Registration,
)
from torsh_runtime.backends.library.failure_notifications import FailureCause
from torsh_runtime.backends.library.library_backend import LibraryBackend
from torsh_runtime.backends.library.operands import is_list
from torsh_runtime.backends.nccl.device import is_on_gpu
from torsh_runtime.backends.nccl.late import LateNcclBackend
from torsh_runtime.backends.operation import OBJECTS, Op
from torsh_runtime.backends.reconfiguration import Refusing
from torsh_runtime.backends.spares import Spares
from torsh_runtime.backends.work import Work
from torsh_runtime.errors import CommError

_PATIENCE = 5.0
"""Seconds within which a backend that has failed says why."""


class ByDeviceBackend(Backend):
    """Arrays on GPUs go to NCCL. Those in the processor's memory go to the other backend, and so
    do barriers and objects.

    Operations of one member are in order; between the two there is none. All arrays of a call are
    on one kind of device, or it raises TypeError; so are those of all ranks.
    """

    type: ByDevice

    def __init__(self, kind: ByDevice, host: Backend, gpu: LateNcclBackend) -> None:
        """Take over both backends: if either of them fails, so does the other."""
        super().__init__(host.rank, host.world_size)
        self.type = kind
        self._members = host, gpu
        self._host = host
        self._gpu = gpu
        self._closing = False
        gpu.accompany(self)

    @property
    def members(self) -> Sequence[Backend]:
        return self._members

    def note_title(self, title: str) -> None:
        for member in self.members:
            member.note_title(title)

    def take_from(self, spares: Spares) -> None:
        self._host.take_from(spares)

    @property
    def job_ranks(self) -> Sequence[int]:
        return self._host.job_ranks

    @property
    def facts(self) -> Facts:
        """Return the properties of the host's group: all ranks of both members are in the same
        places.
        """
        return self._host.facts

    def all_come(self, array: object) -> bool:
        return self._at(array).all_come(array)

    @property
    def failed(self) -> bool:
        return any(member.failed for member in self._members)

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        if op.kind in ("barrier", *OBJECTS):
            return self._host.run(op, timeout, async_op)
        array = op.output
        if array is op.input and type(array) is not np.ndarray and is_on_gpu(array):
            return self._gpu.run(op, timeout, async_op)
        return self._at_all(op).run(op, timeout, async_op)

    def all_reduce_coalesced(
        self, arrays: Sequence[object], op: Reduce, timeout: float, async_op: bool = False
    ) -> list[Work]:
        return [
            work
            for member, alike in groupby(arrays, self._at)
            for work in member.all_reduce_coalesced([*alike], op, timeout, async_op)
        ]

    def all_gather_numbers(self, own: NDArray[np.int64], timeout: float) -> NDArray[np.int64]:
        return self._host.all_gather_numbers(own, timeout)

    def probe(
        self, src: int | None, tag: int | None, timeout: float, wait: bool = True
    ) -> Envelope | None:
        return self._host.probe(src, tag, timeout, wait)

    def in_order(self, call: Callable[[], None], async_op: bool = False) -> Work:
        return self._host.in_order(call, async_op)

    @contextmanager
    def coalescing(self, timeout: float = PATIENCE) -> Iterator[None]:
        with self._host.coalescing(timeout), self._gpu.coalescing(timeout):
            yield

    def shared_memory(self, num_bytes: int, timeout: float) -> NDArray[np.uint8]:
        return self._host.shared_memory(num_bytes, timeout)

    def common_memory(self, num_bytes: int, timeout: float) -> memoryview | None:
        return self._host.common_memory(num_bytes, timeout)

    def register_memory(self, address: int, num_bytes: int, owner: object) -> Registration | None:
        return self._gpu.register_memory(address, num_bytes, owner)

    def suspend(self, timeout: float) -> None:
        self._host.suspend(timeout)
        self._gpu.suspend(timeout)

    def resume(self, timeout: float) -> None:
        self._host.resume(timeout)
        self._gpu.resume(timeout)

    def abort(self) -> None:
        for member in self._members:
            member.abort()

    def close(self) -> None:
        host, gpu = self._members
        gpu.ended()  # a host that is closed does not tell any more why it had failed
        self._closing = True
        try:
            host.close()  # first, as peers that still need this rank hear of it at once
        finally:
            gpu.close()

    def cause(self) -> FailureCause | None:
        """Return why the backend beside NCCL has failed, or None if it has not.

        The thread that watches all groups calls it, so it runs no callbacks of the program.
        """
        host, _ = self._members
        if isinstance(host, LibraryBackend):
            return host.ended() if host.failed and not self._closing else None
        try:
            if host.failed:
                host.barrier(_PATIENCE)  # raises what the group has ended with
        except CommError as error:
            return None if self._closing else FailureCause.of(error)
        return None

    def end(self, cause: FailureCause) -> None:
        """End the host's backend because NCCL has failed: pending operations end, new ones are
        refused.
        """
        host, gpu = self._members

        def error() -> CommError:
            gpu.told()
            return cause.error()

        self._host = cast(Backend, Refusing(host, error))
        host.abort()

    def _at(self, array: object) -> Backend:
        if type(array) is np.ndarray or not is_on_gpu(array):
            return self._host
        return self._gpu

    def _at_all(self, op: Op) -> Backend:
        """Return the member for the arrays of the operation.

        Raises TypeError if some are on a GPU and some in host memory.
        """
        if type(op.output) is np.ndarray and type(op.input) is np.ndarray:
            return self._host  # as most often, and at once
        found: dict[bool, tuple[str, object]] = {}
        for given, value in op.arrays.items():
            name = given if given in ("outputs", "inputs") else "array"
            for array in value if is_list(value) else (value,):
                if array is not None:
                    found[is_on_gpu(array)] = name, array
        if len(found) > 1:
            words = {
                place: f"{name} has a {_type(array)}" for place, (name, array) in found.items()
            }
            raise TypeError(
                f"{op.kind}: {words[True]} on a GPU and {words[False]} in the processor's memory; "
                f"the arrays of a call are on one kind of device"
            )
        return self._gpu if True in found else self._host


def _type(array: object) -> str:
    return f"{type(array).__module__}.{type(array).__name__}"
