"""The port's operations on CUDA streams, by NCCL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.base import Reduce
from torsh_runtime.backends.library.news import News
from torsh_runtime.backends.library.operands import (
    Parts,
    check_both,
    check_none,
    check_part,
    check_peer,
    check_rank,
    parts_of,
)
from torsh_runtime.backends.library.steps import Steps
from torsh_runtime.backends.library.stepwise import StepwiseBackend
from torsh_runtime.backends.nccl.device import Operand, loaded_framework, memories
from torsh_runtime.backends.nccl.reductions import Reduction
from torsh_runtime.backends.nccl.streams import Launch, OwnStream, Recorded, StreamWork
from torsh_runtime.backends.work import Work
from torsh_runtime.errors import CommError

_SUCCESS, _IN_PROGRESS = 0, 7
"""ncclResult_t."""


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

        finish = _finishing(reduction, values, wire)
        steps = self._steps([values], begin, finish)
        return self._collective("all_reduce", steps, timeout, async_op, array, -1, op)

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

        finish = _finishing(reduction, values, wire) if root == self._rank else None
        steps = self._steps([values], begin, finish)
        return self._collective("reduce", steps, timeout, async_op, array, root, op)

    def broadcast(self, array: object, root: int, timeout: float, async_op: bool = False) -> Work:
        check_rank("root", root, self._world_size)
        values = Operand(array)

        def begin(nccl: Any, stream: Any) -> None:
            nccl.broadcast(values.bytes, values.bytes, root, stream=stream)

        steps = self._steps([values], begin, _copying([values]))
        return self._collective("broadcast", steps, timeout, async_op, array, root)

    def all_gather(
        self, outputs: object, array: object, timeout: float, async_op: bool = False
    ) -> Work:
        source = Operand(array)
        targets = self._parts("outputs", outputs, source)
        if targets.listed:
            to_all = Parts([source] * self._world_size, [source.size] * self._world_size, True)
            steps = self._exchange(to_all, targets)
        else:
            [target] = targets.arrays

            def begin(nccl: Any, stream: Any) -> None:
                nccl.allgather(source.bytes, target.bytes, stream=stream)

            steps = self._steps([source, target], begin, _copying([target]))
        return self._collective("all_gather", steps, timeout, async_op, array)

    def gather(
        self, outputs: object, array: object, root: int, timeout: float, async_op: bool = False
    ) -> Work:
        source = Operand(array)
        targets = self._parts_at(root, "outputs", outputs, source)
        steps = self._exchange(self._only(root, source), targets)
        return self._collective("gather", steps, timeout, async_op, array, root)

    def scatter(
        self, array: object, inputs: object, root: int, timeout: float, async_op: bool = False
    ) -> Work:
        target = Operand(array)
        sources = self._parts_at(root, "inputs", inputs, target)
        steps = self._exchange(sources, self._only(root, target))
        return self._collective("scatter", steps, timeout, async_op, array, root)

    def reduce_scatter(
        self, output: object, inputs: object, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        target = Operand(output)
        sources = self._parts("inputs", inputs, target)
        reduction = self._reduction(target, op)
        wires, room = [reduction.wire(each) for each in sources.arrays], reduction.wire(target)

        def begin(nccl: Any, stream: Any) -> None:
            with reduction.op(nccl) as how:
                if not sources.listed:
                    nccl.reduce_scatter(wires[0], room, how, stream=stream)
                    return
                for root, wire in enumerate(wires):
                    if len(wire):
                        nccl.reduce(wire, room, how, root=root, stream=stream)

        operands = [target, *sources.arrays]
        steps = self._steps(operands, begin, _finishing(reduction, target, room))
        return self._collective("reduce_scatter", steps, timeout, async_op, output, -1, op)

    def all_to_all(
        self, outputs: object, inputs: object, timeout: float, async_op: bool = False
    ) -> Work:
        # NCCL's own call of this is no faster on ordinary memory, and not in all its versions.
        check_both(outputs, inputs)
        sources = parts_of("inputs", inputs, self._world_size, Operand)
        targets = parts_of("outputs", outputs, self._world_size, Operand)
        check_part("outputs", targets, self._rank, sources, sources.sizes[self._rank])
        steps = self._exchange(sources, targets)
        return self._collective("all_to_all", steps, timeout, async_op, inputs)

    def send(
        self, array: object, dst: int, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        check_peer("dst", dst, self._rank, self._world_size)
        _check_no_tag(tag)
        source = Operand(array)

        def begin(nccl: Any, stream: Any) -> None:
            nccl.send(source.bytes, dst, stream=stream)

        return self._message("send", dst, self._steps([source], begin), timeout, async_op, array)

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

        steps = self._steps([target], begin, _copying([target]), src)
        return self._message("recv", src, steps, timeout, async_op, array)

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
        finish: Callable[[], None] | None = None,
        source: int | None = None,
    ) -> Steps:
        """Put an operation on the group's stream: `begin` what NCCL does, then `finish`, if there
        is anything to be finished."""
        for operand in operands:
            operand.check_device(self._device)
        with self._library_errors():
            self._own.follow(operands)
            with self._nccl.group():
                if any(operand.size for operand in operands):
                    begin(self._communicator, self._own.stream)
        yield self._together or Launch(launched=True)
        if finish is not None:
            with self._own.taken(operands):
                finish()
        yield Recorded(self._own, operands, self._check_communicator)
        return source

    def _exchange(self, outgoing: Parts[Operand], incoming: Parts[Operand]) -> Steps:
        """Send each rank its part, and receive one from it."""

        def begin(nccl: Any, stream: Any) -> None:
            for rank, memory in memories(outgoing):
                nccl.send(memory, rank, stream=stream)
            for rank, memory in memories(incoming):
                nccl.recv(memory, rank, stream=stream)

        operands = [*outgoing.arrays, *incoming.arrays]
        return self._steps(operands, begin, _copying(incoming.arrays))

    def _parts(self, name: str, given: object, own: Operand) -> Parts[Operand]:
        """Of which this rank's own has the size of `own`."""
        found = parts_of(name, given, self._world_size, Operand)
        check_part(name, found, self._rank, own, own.size)
        return found

    def _parts_at(self, root: int, name: str, given: object, own: Operand) -> Parts[Operand]:
        """The same on the root; nothing on the other ranks."""
        check_rank("root", root, self._world_size)
        if root == self._rank:
            return self._parts(name, given, own)
        check_none(name, given)
        return Parts([], [0] * self._world_size, True)

    def _only(self, root: int, operand: Operand) -> Parts[Operand]:
        sizes = [operand.size if rank == root else 0 for rank in range(self._world_size)]
        return Parts([operand], sizes, False)

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


def _finishing(reduction: Reduction, values: Operand, wire: Any) -> Callable[[], None] | None:
    """What puts a result where it belongs; None where NCCL does that."""
    return partial(reduction.finish, values, wire) if reduction.has_to_finish(values) else None


def _copying(operands: Sequence[Operand]) -> Callable[[], None] | None:
    """What copies results to arrays that are not contiguous; None where there is none."""
    copied = [operand for operand in operands if operand.is_copied]

    def finish() -> None:
        for operand in copied:
            operand.finish()

    return finish if copied else None


def _check_no_tag(tag: int | None) -> None:
    if tag != 0:
        raise ValueError(f"NCCL has no tags: messages arrive in order, so use tag 0, not {tag!r}")
