"""World size 1: every collective is a copy at most."""

from __future__ import annotations

from torsh_runtime.arrays import stage
from torsh_runtime.backends.base import Backend, BackendType, Envelope, Facts, Reduce, ReduceOp
from torsh_runtime.backends.library.operands import (
    check_both,
    check_part,
    check_rank,
    flat,
    flat_parts,
)
from torsh_runtime.backends.library.reductions import combine, reduction_of
from torsh_runtime.backends.work import COMPLETED, Work
from torsh_runtime.errors import CommAborted, ConfigError
from torsh_runtime.store.client import StoreClient

_NO_PEER = "messages go to other ranks, and this group has one rank only"


class SingleBackend(Backend):
    """A group of one. Every operation is complete when its call returns."""

    type: BackendType = BackendType.SINGLE

    def __init__(self, stands_for: BackendType | None = None) -> None:
        """`stands_for`: the backend that was asked for, whose name the group then has."""
        super().__init__(0, 1)
        self._end = ""
        if stands_for is not None:
            self.type = stands_for

    @classmethod
    def connect(
        cls, store: StoreClient | None, rank: int, world_size: int, timeout: float
    ) -> SingleBackend:
        """A group of one; ConfigError if it is to have more ranks. The store is not used."""
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

    def reduce(
        self, array: object, root: int, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        check_rank("root", root, 1)
        return self.all_reduce(array, op, timeout)

    def broadcast(self, array: object, root: int, timeout: float, async_op: bool = False) -> Work:
        self._check_open()
        check_rank("root", root, 1)
        with flat(array, writable=False):
            return COMPLETED

    def all_gather(
        self, outputs: object, array: object, timeout: float, async_op: bool = False
    ) -> Work:
        return self._copy(outputs, [array])

    def gather(
        self, outputs: object, array: object, root: int, timeout: float, async_op: bool = False
    ) -> Work:
        check_rank("root", root, 1)
        return self._copy(outputs, [array])

    def scatter(
        self, array: object, inputs: object, root: int, timeout: float, async_op: bool = False
    ) -> Work:
        check_rank("root", root, 1)
        return self._copy([array], inputs)

    def reduce_scatter(
        self, output: object, inputs: object, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        return self._copy([output], inputs, op)

    def all_to_all(
        self, outputs: object, inputs: object, timeout: float, async_op: bool = False
    ) -> Work:
        check_both(outputs, inputs)
        return self._copy(outputs, inputs)

    def send(
        self, array: object, dst: int, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        self._check_open()
        raise ValueError(_NO_PEER)

    def recv(
        self,
        array: object,
        src: int | None,
        tag: int | None,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        self._check_open()
        raise ValueError(_NO_PEER)

    def probe(
        self, src: int | None, tag: int | None, timeout: float, wait: bool = True
    ) -> Envelope | None:
        self._check_open()
        raise ValueError(_NO_PEER)

    def send_object(
        self, content: object, dst: int, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        return self.send(content, dst, tag, timeout)

    def recv_object(
        self, src: int | None, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        return self.recv(None, src, tag, timeout)

    def barrier(self, timeout: float, async_op: bool = False) -> Work:
        self._check_open()
        return COMPLETED

    def abort(self) -> None:
        self._end = "was aborted"

    def close(self) -> None:
        self._end = self._end or "is closed"

    def _check_open(self) -> None:
        if self._end:
            raise CommAborted(f"the process group {self._end}; make a new one")

    def _copy(self, outputs: object, inputs: object, op: Reduce | None = None) -> Work:
        """The only part of each."""
        self._check_open()
        with (
            flat_parts("inputs", inputs, 1, writable=False) as sources,
            flat_parts("outputs", outputs, 1, writable=True) as targets,
        ):
            source, target = sources.arrays[0], targets.arrays[0]
            check_part("outputs", targets, 0, source, source.size)
            if op is not None and reduction_of(source.dtype, op) is ReduceOp.PREMUL_SUM:
                source = combine([source], op, 1)
            target[...] = source
        return COMPLETED
