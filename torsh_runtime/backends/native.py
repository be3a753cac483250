"""The native backend: C++ collectives over a shared memory segment of one node."""

from __future__ import annotations

import time
from enum import IntEnum
from typing import Any, ClassVar, NoReturn

from torsh_runtime.arrays import staged
from torsh_runtime.backends import segment
from torsh_runtime.backends.base import Backend, BackendType, ReduceOp
from torsh_runtime.backends.library import _native
from torsh_runtime.backends.work import COMPLETED, Work
from torsh_runtime.errors import (
    CommAborted,
    CommError,
    CommMismatch,
    CommTimeout,
    PeerLost,
)
from torsh_runtime.status import DTYPES, OPERATIONS
from torsh_runtime.store.client import StoreClient

_REDUCING = ("all_reduce", "reduce_scatter")


class _Kind(IntEnum):
    """FailureKind of csrc/common/failure.hpp."""

    PEER_LOST = 1
    PEER_LEFT = 2
    TIMEOUT = 3
    MISMATCH = 4
    ABORTED = 5
    CLOSED = 6
    BUSY = 7
    NESTED = 8
    FORKED = 9


_REFUSALS = {
    _Kind.CLOSED: "the process group is closed; make a new one",
    _Kind.BUSY: "another thread of this process has used the group for over {seconds:g} s, so this "
    "operation was not begun; give each thread a group of its own",
    _Kind.NESTED: "a signal handler called a collective while it had interrupted another one of "
    "the same group; set a flag in the handler instead",
    _Kind.FORKED: "this process is a fork of a rank and no rank itself; call collectives in the "
    "parent, or start the child by exec and give it a group of its own",
}


class NativeBackend(Backend):
    """One rank's end of a shared-memory group."""

    type: ClassVar[BackendType] = BackendType.NATIVE

    def __init__(self, group: _native.Group, rank: int, world_size: int) -> None:
        self._group = group
        self._rank = rank
        self._world_size = world_size
        self._failed = False

    @classmethod
    def connect(
        cls, store: StoreClient, rank: int, world_size: int, timeout: float
    ) -> NativeBackend:
        """Meet the other ranks through the store, whose keys must be fresh, and share memory.

        Raises CommTimeout naming the ranks that did not come within `timeout` seconds, and
        BackendUnavailable if some run on another machine.
        """
        deadline = time.monotonic() + timeout
        group = segment.join(store, rank, world_size, timeout)
        backend = cls(group, rank, world_size)
        backend.barrier(max(deadline - time.monotonic(), 0.001))
        return backend

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    @property
    def failed(self) -> bool:
        return self._failed

    def all_reduce(self, array: object, op: ReduceOp, timeout: float) -> Work:
        try:
            self._group.all_reduce(array, op, timeout)
        except _native.NotDirect:
            with staged(array, writable=True) as copy:
                self.all_reduce(copy, op, timeout)
        except _native.Failure as failure:
            self._fail(failure)
        return COMPLETED

    def broadcast(self, array: object, root: int, timeout: float) -> Work:
        try:
            self._group.broadcast(array, root, timeout)
        except _native.NotDirect:
            with staged(array, writable=root != self._rank) as copy:
                self.broadcast(copy, root, timeout)
        except _native.Failure as failure:
            self._fail(failure)
        return COMPLETED

    def all_gather(self, output: object, array: object, timeout: float) -> Work:
        try:
            self._group.all_gather(output, array, timeout)
        except _native.NotDirect:
            with staged(array, writable=False) as source, staged(output, writable=True) as target:
                self.all_gather(target, source, timeout)
        except _native.Failure as failure:
            self._fail(failure)
        return COMPLETED

    def reduce_scatter(self, output: object, array: object, op: ReduceOp, timeout: float) -> Work:
        try:
            self._group.reduce_scatter(output, array, op, timeout)
        except _native.NotDirect:
            with staged(array, writable=False) as source, staged(output, writable=True) as target:
                self.reduce_scatter(target, source, op, timeout)
        except _native.Failure as failure:
            self._fail(failure)
        return COMPLETED

    def barrier(self, timeout: float) -> Work:
        try:
            self._group.barrier(timeout)
        except _native.Failure as failure:
            self._fail(failure)
        return COMPLETED

    def abort(self) -> None:
        self._group.abort()

    def close(self) -> None:
        self._group.close()

    def _fail(self, failure: Exception) -> NoReturn:
        """Raise the CommError that the native layer's account of a failure stands for."""
        self._failed = True
        raise _comm_error(*failure.args) from None


def _comm_error(
    kind: int,
    rank: int,
    reporter: int,
    operation: int,
    sequence: int,
    seconds: float,
    missing: list[int],
    own: tuple[Any, ...],
    other: tuple[Any, ...],
) -> CommError:
    op = OPERATIONS[operation] if sequence else "init_process_group"
    match kind:
        case _Kind.PEER_LOST:
            return PeerLost(rank, op, sequence)
        case _Kind.PEER_LEFT:
            return PeerLost(rank, op, sequence, "it has left the group")
        case _Kind.TIMEOUT:
            return CommTimeout(op, sequence, seconds, missing)
        case _Kind.MISMATCH:
            return CommMismatch(sequence, reporter, _call(own), rank, _call(other))
        case _Kind.ABORTED:
            return CommAborted(
                f"rank {rank} aborted the group during {op} (operation {sequence}). Destroy the "
                f"process group and make a new one."
            )
        case _:
            return CommAborted(_REFUSALS[_Kind(kind)].format(seconds=seconds))


def _call(call: tuple[Any, ...]) -> str:
    kind, dtype, op, root, shape = call
    name = OPERATIONS[kind]
    if name == "barrier":
        return "barrier()"
    text = f"{DTYPES[dtype]}[{', '.join(map(str, shape))}]"
    if name in _REDUCING:
        text += f", {ReduceOp(op).name}"
    if name == "broadcast":
        text += f", src={root}"
    return f"{name}({text})"
