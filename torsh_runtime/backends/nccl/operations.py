"""The port's operations on CUDA streams, by NCCL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.base import Reduce
from torsh_runtime.backends.library.news import News
from torsh_runtime.backends.library.operands import (
    check_dtype,
    check_own_part,
    check_parts,
    check_peer,
    check_rank,
    check_size,
    none_here,
)
from torsh_runtime.backends.library.steps import Steps
from torsh_runtime.backends.library.stepwise import StepwiseBackend
from torsh_runtime.backends.nccl.device import Operand, loaded_framework
from torsh_runtime.backends.nccl.reductions import Reduction
from torsh_runtime.backends.nccl.streams import Launch, OwnStream, Recorded, StreamWork
from torsh_runtime.backends.work import Work
from torsh_runtime.errors import CommError

_SUCCESS, _IN_PROGRESS = 0, 7
"""ncclResult_t."""
Lists = Sequence[object]


class NcclOperations(StepwiseBackend):
    """A group over an NCCL communicator."""

    _work = StreamWork

    def __init__(self, nccl: Any, cuda: Any, communicator: Any, news: News) -> None:
        """`nccl` and `cuda` are nccl4py's and cuda-core's modules; the communicator's device is
        the current one."""
        super().__init__(communicator.rank, communicator.nranks, news)
        self._nccl = nccl
        self._cuda = cuda
        self._communicator = communicator
        self._device: int = communicator.device.device_id
        self._own = OwnStream(cuda, self._device)
        self._together: Launch | None = None

    def all_reduce(self, array: object, op: Reduce, timeout: float, async_op: bool = False) -> Work:
        values = Operand(array)
        reduction = self._reduction(values, op)
        wire = reduction.wire(values)

        def begin(nccl: Any, stream: Any) -> None:
            with reduction.op(nccl) as how:
                nccl.allreduce(wire, wire, how, stream=stream)

        steps = self._steps([values], begin, lambda: reduction.finish(values, wire))
        return self._collective("all_reduce", steps, timeout, async_op)

    def reduce(
        self, array: object, root: int, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        check_rank("root", root, self._world_size)
        values = Operand(array)
        reduction = self._reduction(values, op)
        wire = reduction.wire(values)

        def begin(nccl: Any, stream: Any) -> None:
            with reduction.op(nccl) as how:
                nccl.reduce(wire, wire, how, root=root, stream=stream)

        def finish() -> None:
            if root == self._rank:
                reduction.finish(values, wire)

        return self._collective("reduce", self._steps([values], begin, finish), timeout, async_op)

    def broadcast(self, array: object, root: int, timeout: float, async_op: bool = False) -> Work:
        check_rank("root", root, self._world_size)
        values = Operand(array)

        def begin(nccl: Any, stream: Any) -> None:
            nccl.broadcast(values.bytes, values.bytes, root, stream=stream)

        steps = self._steps([values], begin, values.finish)
        return self._collective("broadcast", steps, timeout, async_op)

    def all_gather(
        self, output: object, array: object, timeout: float, async_op: bool = False
    ) -> Work:
        source, target = Operand(array), Operand(output)
        check_dtype("output", target, source)
        check_size("output", target, source.size * self._world_size, "world_size × the input's")

        def begin(nccl: Any, stream: Any) -> None:
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

        def begin(nccl: Any, stream: Any) -> None:
            with reduction.op(nccl) as how:
                nccl.reduce_scatter(wire, room, how, stream=stream)

        steps = self._steps([source, target], begin, lambda: reduction.finish(target, room))
        return self._collective("reduce_scatter", steps, timeout, async_op)

    def reduce_scatter_list(
        self, output: object, inputs: Lists, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        target, sources = Operand(output), _operands("inputs", inputs, self._world_size)
        check_own_part("inputs", sources, target, self._rank)
        reduction = self._reduction(target, op)
        wires, room = [reduction.wire(source) for source in sources], reduction.wire(target)

        def begin(nccl: Any, stream: Any) -> None:
            with reduction.op(nccl) as how:
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

        def begin(nccl: Any, stream: Any) -> None:
            # NCCL's own call of this is no faster on ordinary memory, and not in all its versions.
            sent, received = source.parts(self._world_size), target.parts(self._world_size)
            for rank in range(self._world_size):
                nccl.send(sent[rank], rank, stream=stream)
                nccl.recv(received[rank], rank, stream=stream)

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

        def begin(nccl: Any, stream: Any) -> None:
            nccl.send(source.bytes, dst, stream=stream)

        return self._message("send", dst, self._steps([source], begin), timeout, async_op)

    def recv(
        self,
        array: object,
        src: int | None,
        tag: int | None,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        if src is None:
            raise ValueError("NCCL cannot receive from anyone: say from which rank (src)")
        check_peer("src", src, self._rank, self._world_size)
        _check_no_tag(tag)
        target = Operand(array)

        def begin(nccl: Any, stream: Any) -> None:
            nccl.recv(target.bytes, src, stream=stream)

        steps = self._steps([target], begin, target.finish, src)
        return self._message("recv", src, steps, timeout, async_op)

    def barrier(self, timeout: float, async_op: bool = False) -> Work:
        token = Operand(loaded_framework().uploaded(np.zeros(1, np.uint8), self._device))

        def begin(nccl: Any, stream: Any) -> None:
            nccl.allreduce(token.bytes, token.bytes, self._nccl.SUM, stream=stream)

        return self._collective("barrier", self._steps([token], begin), timeout, async_op)

    def all_gather_numbers(self, own: NDArray[np.int64], timeout: float) -> NDArray[np.int64]:
        framework, shape = loaded_framework(), (self._world_size, own.size)
        everyone = framework.uploaded(np.zeros(shape, np.int64), self._device)
        array = framework.uploaded(own, self._device)
        self.all_gather(everyone, array, timeout, async_op=True).wait(timeout)
        return framework.downloaded(everyone)

    def _steps(
        self,
        operands: Sequence[Operand],
        begin: Callable[[Any, Any], None],
        finish: Callable[[], None] = lambda: None,
        source: int | None = None,
    ) -> Steps:
        """Put an operation on the group's stream: `begin` what NCCL does, then `finish`."""
        for operand in operands:
            operand.check_device(self._device)
        with self._library_errors():
            self._own.follow(operands)
            with self._nccl.group():
                if any(operand.size for operand in operands):
                    begin(self._communicator, self._own.stream)
        yield self._together or Launch(launched=True)
        with self._own.taken(operands):
            finish()
        yield Recorded(self._own, operands, self._check_communicator)
        return source

    def _exchange(
        self, outgoing: Sequence[Operand | None], incoming: Sequence[Operand | None]
    ) -> Steps:
        """Send outgoing[r] to rank r, and receive incoming[r] from it."""

        def begin(nccl: Any, stream: Any) -> None:
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

    def _reduction(self, values: Operand, op: Reduce) -> Reduction:
        return Reduction(self._nccl, values.dtype.name, op, self._world_size)


def _operands(name: str, arrays: Lists | None, count: int) -> list[Operand]:
    operands = [Operand(array) for array in arrays or ()]
    if len(operands) != count:
        raise ValueError(f"{name} has {len(operands)} arrays; it needs one per rank, {count}")
    for operand in operands:
        check_dtype(name, operand, operands[0])
    return operands


def _check_no_tag(tag: int | None) -> None:
    if tag != 0:
        raise ValueError(f"NCCL has no tags: messages arrive in order, so use tag 0, not {tag!r}")
