"""The port's operations on CUDA streams, by NCCL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torsh_runtime.backends.base import PremulSum, Reduce, ReduceOp
from torsh_runtime.backends.device import Operand, one_byte
from torsh_runtime.backends.news import News
from torsh_runtime.backends.operands import (
    check_dtype,
    check_own_part,
    check_parts,
    check_peer,
    check_rank,
    check_size,
    none_here,
)
from torsh_runtime.backends.reductions import check_reducible
from torsh_runtime.backends.steps import Steps
from torsh_runtime.backends.stepwise import StepwiseBackend
from torsh_runtime.backends.streams import Launch, Recorded, StreamWork
from torsh_runtime.backends.work import Work
from torsh_runtime.errors import CommError

_SUCCESS, _IN_PROGRESS = 0, 7
"""ncclResult_t."""
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_NAMES = {ReduceOp.PRODUCT: "PROD"}
_BOOLEAN = {
    **dict.fromkeys((ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BOR), ReduceOp.MAX),
    **dict.fromkeys((ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.BAND), ReduceOp.MIN),
    ReduceOp.BXOR: ReduceOp.SUM,  # of bytes; the lowest bit says whether the number was odd
}
_AS = {"bool": "uint8", "complex64": "float32", "complex128": "float64"}
_CONVERTED = {"int16": "int32", "uint16": "int32"}

Lists = Sequence[object]


class NcclOperations(StepwiseBackend):
    """A group over an NCCL communicator."""

    _work = StreamWork

    def __init__(self, nccl: Any, cuda: Any, communicator: Any, news: News) -> None:
        """`nccl` and `cuda` are nccl4py's and cuda-core's modules."""
        super().__init__(communicator.rank, communicator.nranks, news)
        self._nccl = nccl
        self._cuda = cuda
        self._communicator = communicator
        self._device: int = communicator.device.device_id
        self._together: Launch | None = None

    def all_reduce(self, array: object, op: Reduce, timeout: float, async_op: bool = False) -> Work:
        values = Operand(array)
        reduction = self._reduction(values, op)
        wire = reduction.wire(values)

        def begin(nccl: Any, stream: int) -> None:
            nccl.allreduce(wire, wire, reduction.op(nccl), stream=stream)

        steps = self._steps([values], begin, lambda: reduction.finish(values, wire))
        return self._collective("all_reduce", steps, timeout, async_op)

    def reduce(
        self, array: object, root: int, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        check_rank("root", root, self._world_size)
        values = Operand(array)
        reduction = self._reduction(values, op)
        wire = reduction.wire(values)

        def begin(nccl: Any, stream: int) -> None:
            nccl.reduce(wire, wire, reduction.op(nccl), root=root, stream=stream)

        def finish() -> None:
            if root == self._rank:
                reduction.finish(values, wire)

        return self._collective("reduce", self._steps([values], begin, finish), timeout, async_op)

    def broadcast(self, array: object, root: int, timeout: float, async_op: bool = False) -> Work:
        check_rank("root", root, self._world_size)
        values = Operand(array)

        def begin(nccl: Any, stream: int) -> None:
            nccl.broadcast(values.bytes, values.bytes, root, stream=stream)

        steps = self._steps([values], begin, values.finish)
        return self._collective("broadcast", steps, timeout, async_op)

    def all_gather(
        self, output: object, array: object, timeout: float, async_op: bool = False
    ) -> Work:
        source, target = Operand(array), Operand(output)
        check_dtype("output", target, source)
        check_size("output", target, source.size * self._world_size, "world_size × the input's")

        def begin(nccl: Any, stream: int) -> None:
            nccl.allgather(source.bytes, target.bytes, stream=stream)

        steps = self._steps([source, target], begin, target.finish)
        return self._collective("all_gather", steps, timeout, async_op)

    def all_gather_list(
        self, outputs: Lists, array: object, timeout: float, async_op: bool = False
    ) -> Work:
        source, targets = Operand(array), _operands("outputs", outputs, self._world_size)
        check_own_part("outputs", targets, source, self._rank)
        to_all, from_all = [source] * self._world_size, targets
        steps = self._exchange(to_all, from_all)
        return self._collective("all_gather", steps, timeout, async_op)

    def gather(
        self,
        outputs: Lists | None,
        array: object,
        root: int,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        check_rank("root", root, self._world_size)
        source = Operand(array)
        targets: list[Operand] = []
        if root == self._rank:
            targets = _operands("outputs", outputs, self._world_size)
            check_own_part("outputs", targets, source, root)
        else:
            none_here("outputs", outputs)
        to_root = [source if rank == root else None for rank in range(self._world_size)]
        steps = self._exchange(to_root, targets)
        return self._collective("gather", steps, timeout, async_op)

    def scatter(
        self,
        array: object,
        inputs: Lists | None,
        root: int,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        check_rank("root", root, self._world_size)
        target = Operand(array)
        sources: list[Operand] = []
        if root == self._rank:
            sources = _operands("inputs", inputs, self._world_size)
            check_own_part("inputs", sources, target, root)
        else:
            none_here("inputs", inputs)
        from_root = [target if rank == root else None for rank in range(self._world_size)]
        steps = self._exchange(sources, from_root)
        return self._collective("scatter", steps, timeout, async_op)

    def reduce_scatter(
        self, output: object, array: object, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        source, target = Operand(array), Operand(output)
        check_dtype("output", target, source)
        check_size("array", source, target.size * self._world_size, "world_size × the output's")
        reduction = self._reduction(target, op)
        wire, room = reduction.wire(source), reduction.wire(target)

        def begin(nccl: Any, stream: int) -> None:
            nccl.reduce_scatter(wire, room, reduction.op(nccl), stream=stream)

        steps = self._steps([source, target], begin, lambda: reduction.finish(target, room))
        return self._collective("reduce_scatter", steps, timeout, async_op)

    def reduce_scatter_list(
        self, output: object, inputs: Lists, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        target, sources = Operand(output), _operands("inputs", inputs, self._world_size)
        check_own_part("inputs", sources, target, self._rank)
        reduction = self._reduction(target, op)
        wires, room = [reduction.wire(source) for source in sources], reduction.wire(target)

        def begin(nccl: Any, stream: int) -> None:
            how = reduction.op(nccl)
            for root, wire in enumerate(wires):
                if len(wire):
                    nccl.reduce(wire, room, how, root=root, stream=stream)

        steps = self._steps([target, *sources], begin, lambda: reduction.finish(target, room))
        return self._collective("reduce_scatter", steps, timeout, async_op)

    def all_to_all(
        self, output: object, array: object, timeout: float, async_op: bool = False
    ) -> Work:
        source, target = Operand(array), Operand(output)
        check_parts(target, source, self._world_size)

        def begin(nccl: Any, stream: int) -> None:
            nccl.alltoall(source.bytes, target.bytes, stream=stream)

        steps = self._steps([source, target], begin, target.finish)
        return self._collective("all_to_all", steps, timeout, async_op)

    def all_to_all_list(
        self, outputs: Lists, inputs: Lists, timeout: float, async_op: bool = False
    ) -> Work:
        sources = _operands("inputs", inputs, self._world_size)
        targets = _operands("outputs", outputs, self._world_size)
        check_own_part("outputs", targets, sources[self._rank], self._rank)
        steps = self._exchange(sources, targets)
        return self._collective("all_to_all", steps, timeout, async_op)

    def send(
        self, array: object, dst: int, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        check_peer("dst", dst, self._rank, self._world_size)
        _check_no_tag(tag)
        source = Operand(array)

        def begin(nccl: Any, stream: int) -> None:
            nccl.send(source.bytes, dst, stream=stream)

        return self._message("send", dst, self._steps([source], begin), timeout, async_op)

    def recv(
        self, array: object, src: int | None, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        if src is None:
            raise ValueError("NCCL cannot receive from anyone: say from which rank (src)")
        check_peer("src", src, self._rank, self._world_size)
        _check_no_tag(tag)
        target = Operand(array)

        def begin(nccl: Any, stream: int) -> None:
            nccl.recv(target.bytes, src, stream=stream)

        steps = self._steps([target], begin, target.finish, src)
        return self._message("recv", src, steps, timeout, async_op)

    def barrier(self, timeout: float, async_op: bool = False) -> Work:
        token = Operand(one_byte(self._device))

        def begin(nccl: Any, stream: int) -> None:
            nccl.allreduce(token.bytes, token.bytes, self._nccl.SUM, stream=stream)

        return self._collective("barrier", self._steps([token], begin), timeout, async_op)

    def _steps(
        self,
        operands: Sequence[Operand],
        begin: Callable[[Any, int], None],
        finish: Callable[[], None] = lambda: None,
        source: int | None = None,
    ) -> Steps:
        """Put an operation on the current stream: `begin` what NCCL does, then `finish`."""
        for operand in operands:
            operand.check_device(self._device)
        stream = operands[0].stream
        with self._library_errors(), self._nccl.group():
            if any(operand.size for operand in operands):
                begin(self._communicator, stream)
        yield self._together or Launch(launched=True)
        finish()
        yield Recorded(self._cuda, stream, operands, self._check_communicator)
        return source

    def _exchange(
        self, outgoing: Sequence[Operand | None], incoming: Sequence[Operand | None]
    ) -> Steps:
        """Send outgoing[r] to rank r, and receive incoming[r] from it."""

        def begin(nccl: Any, stream: int) -> None:
            for rank, operand in enumerate(outgoing):
                if operand is not None and operand.size:
                    nccl.send(operand.bytes, rank, stream=stream)
            for rank, operand in enumerate(incoming):
                if operand is not None and operand.size:
                    nccl.recv(operand.bytes, rank, stream=stream)

        def finish() -> None:
            for operand in incoming:
                if operand is not None:
                    operand.finish()

        operands = [operand for operand in (*outgoing, *incoming) if operand is not None]
        return self._steps(operands, begin, finish)

    def _check_communicator(self) -> None:
        state = self._communicator.get_async_error()
        if int(state) not in (_SUCCESS, _IN_PROGRESS):
            raise RuntimeError(f"{self._nccl.get_error_string(state)} (NCCL_DEBUG=WARN says more)")

    @contextmanager
    def _library_errors(self) -> Iterator[None]:
        """NCCL's errors are no arguments' fault: those have been checked."""
        try:
            yield
        except (CommError, TypeError, ValueError, RuntimeError):
            raise
        except Exception as error:
            raise RuntimeError(str(error)) from error

    def _reduction(self, values: Operand, op: Reduce) -> _Reduction:
        return _Reduction(self._nccl, values.dtype.name, op)


class _Reduction:
    """One reduction of one dtype, as NCCL can do it."""

    def __init__(self, nccl: Any, dtype: str, op: Reduce) -> None:
        """TypeError for what is not defined, or NCCL has not."""
        kind = check_reducible(dtype, op)
        if (kind in _BITWISE and dtype != "bool") or (
            kind is ReduceOp.PRODUCT and dtype.startswith("complex")
        ):
            raise TypeError(f"NCCL cannot reduce {dtype} by {kind.name}; use backend 'native'")
        self._factor = op.factor if isinstance(op, PremulSum) else None
        self._dtype = dtype
        self._kind = _BOOLEAN[kind] if dtype == "bool" else kind
        self._is_parity = dtype == "bool" and kind is ReduceOp.BXOR
        self._nccl = nccl
        self._made: Any = None

    def op(self, communicator: Any) -> Any:
        """NCCL's own name of the operation."""
        if self._factor is not None:
            wanted = self._nccl.NcclDataType[_AS.get(self._dtype, self._dtype).upper()]
            self._made = communicator.create_pre_mul_sum(self._factor, wanted)
            return self._made
        return getattr(self._nccl, _NAMES.get(self._kind, self._kind.name))

    def wire(self, values: Operand) -> Any:
        """The flat array that NCCL gets: the same memory, or a copy in a wider dtype."""
        if self._dtype in _CONVERTED:
            return values.framework.converted(values.flat, _CONVERTED[self._dtype])
        if self._dtype in _AS:
            return values.framework.viewed(values.flat, _AS[self._dtype])
        return values.flat

    def finish(self, values: Operand, wire: Any) -> None:
        """Put the result where it belongs."""
        if self._made is not None:
            self._made.close()
        if self._is_parity:
            wire &= 1
        if self._dtype in _CONVERTED:
            values.framework.assign(values.flat, wire)
        values.finish()


def _operands(name: str, arrays: Lists | None, count: int) -> list[Operand]:
    operands = [Operand(array) for array in arrays or ()]
    if len(operands) != count:
        raise ValueError(f"{name} has {len(operands)} arrays; it needs one per rank, {count}")
    for operand in operands:
        check_dtype(name, operand, operands[0])
    return operands


def _check_no_tag(tag: int) -> None:
    if tag != 0:
        raise ValueError(f"NCCL has no tags: messages arrive in order, so use tag 0, not {tag!r}")
