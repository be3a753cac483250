"""World size 1: every collective is a copy at most."""

from __future__ import annotations

from typing import ClassVar

from torsh_runtime.arrays import staged
from torsh_runtime.backends.base import Backend, BackendType, ReduceOp
from torsh_runtime.backends.work import COMPLETED, Work
from torsh_runtime.errors import CommAborted


class SingleBackend(Backend):
    """A group of one."""

    type: ClassVar[BackendType] = BackendType.SINGLE

    def __init__(self) -> None:
        self._closed = ""

    @property
    def rank(self) -> int:
        return 0

    @property
    def world_size(self) -> int:
        return 1

    @property
    def failed(self) -> bool:
        return False

    def all_reduce(self, array: object, op: ReduceOp, timeout: float) -> Work:
        ReduceOp(op)
        return self._check(array, writable=True)

    def broadcast(self, array: object, root: int, timeout: float) -> Work:
        return self._check(array, writable=False)

    def all_gather(self, output: object, array: object, timeout: float) -> Work:
        return self._copy(output, array)

    def reduce_scatter(self, output: object, array: object, op: ReduceOp, timeout: float) -> Work:
        ReduceOp(op)
        return self._copy(output, array)

    def barrier(self, timeout: float) -> Work:
        self._check_open()
        return COMPLETED

    def abort(self) -> None:
        self._closed = "was aborted"

    def close(self) -> None:
        self._closed = self._closed or "is closed"

    def _check_open(self) -> None:
        if self._closed:
            raise CommAborted(f"the process group {self._closed}; make a new one")

    def _check(self, array: object, writable: bool) -> Work:
        self._check_open()
        with staged(array, writable=writable):
            return COMPLETED

    def _copy(self, output: object, array: object) -> Work:
        self._check_open()
        with staged(array, writable=False) as source, staged(output, writable=True) as target:
            if source.dtype != target.dtype:
                raise ValueError("input and output must have the same dtype")
            if source.size != target.size:
                raise ValueError("with one rank, input and output must have the same size")
            target[...] = source.reshape(target.shape)
        return COMPLETED
