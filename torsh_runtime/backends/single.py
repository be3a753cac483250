"""World size 1: every collective is a copy at most."""

from __future__ import annotations

from contextlib import ExitStack

from torsh_runtime.arrays import stage
from torsh_runtime.backends.base import Backend, BackendType, Envelope, Facts
from torsh_runtime.backends.library.operands import Array, check_rank, ends_of, flat
from torsh_runtime.backends.library.reductions import combine, reduction_of
from torsh_runtime.backends.operation import Op, Reduce, ReduceOp
from torsh_runtime.backends.work import COMPLETED, Work
from torsh_runtime.errors import CommAborted, ConfigError
from torsh_runtime.store.client import StoreClient

_NO_PEER = "messages go to other ranks, and this group has one rank only"


class SingleBackend(Backend):
    """A group of one. Every operation is complete when its call returns."""

    type: BackendType = BackendType.SINGLE

    def __init__(self, stands_for: BackendType | None = None) -> None:
        """Create a group of one rank. It has the name of `stands_for`, the backend that was asked
        for.
        """
        super().__init__(0, 1)
        self._end = ""
        if stands_for is not None:
            self.type = stands_for

    @classmethod
    def connect(
        cls, store: StoreClient | None, rank: int, world_size: int, timeout: float
    ) -> SingleBackend:
        """Return a group of one rank, without using the store.

        Raises ConfigError if `world_size` is not 1.
        """
        if world_size != 1:
            raise ConfigError(f"backend 'single' is for one rank; world_size is {world_size}")
        return cls()

    @property
    def facts(self) -> Facts:
        return Facts(is_in_node=True)

    @property
    def failed(self) -> bool:
        return self._end == "was aborted"

    def all_reduce(self, array: object, op: Reduce, timeout: float, async_op: bool = False) -> Work:
        self._check_open()
        values, finish = stage(array, writable=True)
        if reduction_of(values.dtype, op) is ReduceOp.PREMUL_SUM:
            values[...] = combine([values], op, 1).reshape(values.shape)
            if finish is not None:
                finish()
        return COMPLETED

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        self._check_open()
        if "peer" in op.takes:
            raise ValueError(_NO_PEER)
        with ExitStack() as stack:

            def take(array: object, writable: bool) -> Array:
                return stack.enter_context(flat(array, writable=writable))

            if "array" in op.takes:
                if "root" in op.takes:
                    check_rank("root", op.root, 1)
                if "reduction" in op.takes:
                    return self.all_reduce(op.output, op.reduction, timeout)
                take(op.output, False)
            elif op.takes:
                targets, sources = ends_of(op, 0, 1, take)
                self._put(op, targets.arrays[0], sources.arrays[0])
        return COMPLETED

    def probe(
        self, src: int | None, tag: int | None, timeout: float, wait: bool = True
    ) -> Envelope | None:
        self._check_open()
        raise ValueError(_NO_PEER)

    def abort(self) -> None:
        self._end = "was aborted"

    def close(self) -> None:
        self._end = self._end or "is closed"

    def _check_open(self) -> None:
        if self._end:
            raise CommAborted(f"the process group {self._end}; make a new one")

    def _put(self, op: Op, target: Array, source: Array) -> None:
        """Put the only rank's values where they belong."""
        if "reduction" in op.takes:
            how = reduction_of(source.dtype, op.reduction)
            if how is ReduceOp.PREMUL_SUM:
                source = combine([source], op.reduction, 1)
        target[...] = source
