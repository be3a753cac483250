"""The port's operations on CUDA streams, by NCCL."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.library.failure_notifications import FailureNotifications
from torsh_runtime.backends.library.library_backend import LibraryBackend
from torsh_runtime.backends.library.operands import Parts, check_peer, check_rank, ends_of
from torsh_runtime.backends.nccl.device import (
    Operand,
    loaded_framework,
    memories,
    staging_of,
    whole_of,
)
from torsh_runtime.backends.nccl.library import Communicator, Cuda, Nccl, Stream
from torsh_runtime.backends.nccl.plans import METHODS, Plan, Ready
from torsh_runtime.backends.nccl.reductions import Reduction
from torsh_runtime.backends.nccl.streams import OwnStream
from torsh_runtime.backends.operation import OBJECTS, Op, ReduceOp
from torsh_runtime.backends.work import Work
from torsh_runtime.enumerations import DTYPES

_SUCCESS, _IN_PROGRESS = 0, 7
"""ncclResult_t."""


class NcclOperations(LibraryBackend):
    """A group over an NCCL communicator."""

    def __init__(
        self, nccl: Nccl, cuda: Cuda, communicator: Communicator, news: FailureNotifications
    ) -> None:
        """Take over a communicator, whose device is the current one.

        `nccl` and `cuda` are nccl4py's and cuda-core's modules.
        """
        super().__init__(communicator.rank, communicator.nranks, news)
        self._nccl = nccl
        self._communicator = communicator
        self._device = communicator.device.device_id
        self._own = OwnStream(cuda, self._device)
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._is_suspended = False
        """The communicator has given its memory back, and has to be resumed first."""

    @abstractmethod
    def _begin(self, op: Op, ready: Ready, timeout: float, async_op: bool) -> Work:
        """Put an operation on the group's stream."""

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        if self._is_suspended:
            self.resume(timeout)
        array: Any = op.output
        key = op.kind, op.reduction, array.__class__, getattr(array, "dtype", None)
        plan = self._plans.get(key) if op.reduction.__class__ is ReduceOp else None
        is_known = getattr(self._own.threads, "has_context", False)
        ready = plan.ready(op) if plan is not None and is_known else None
        if ready is None:
            ready = self._prepared(op)
            if plan is None and op.kind in METHODS:
                self._plan(key, op, ready)
        return self._begin(op, ready, timeout, async_op)

    def _plan(self, key: tuple[object, ...], op: Op, ready: Ready) -> None:
        """Prepare further calls like this one, if its arrays are plain."""
        operand = ready.operands[0]
        dtype = operand.dtype.name.upper()
        if (
            op.reduction.__class__ is not ReduceOp
            or ready.finish is not None
            or not hasattr(self._nccl.NcclDataType, dtype)
            or not (key[-1] and operand.size)
        ):
            return
        how = None
        if op.kind not in ("broadcast", "all_gather"):
            with self._reduction(operand, op).op(self._communicator) as name:
                how = name
        begin = getattr(self._communicator, METHODS[op.kind])
        numbers = DTYPES.index(operand.dtype.name), operand.flat.nbytes // operand.size
        places = self._device, self._world_size, operand.framework
        self._plans[key] = Plan(begin, how, *places, numbers)

    def _prepared(self, op: Op) -> Ready:
        """Return what to hand to NCCL. Raises TypeError and ValueError for what it cannot do."""
        if op.kind in OBJECTS:
            verb = "send" if op.kind == "send_object" else "receive"
            raise ValueError(f"the {self.type} backend cannot {verb} objects")
        if "peer" in op.takes:
            return self._message(op)
        if "array" in op.takes:
            return self._in_place(op)
        if op.kind == "barrier":
            return self._barrier()
        return self._moving(op)

    def _in_place(self, op: Op) -> Ready:
        if "root" in op.takes:
            check_rank("root", op.root, self._world_size)
        values = Operand(op.output)
        if op.kind == "broadcast":

            def begin(nccl: Communicator, stream: Stream) -> None:
                nccl.broadcast(values.bytes, values.bytes, op.root, stream=stream)

            return self._ready([values], begin, _copying([values]))
        reduction = self._reduction(values, op)
        wire = reduction.wire(values)

        def reduce(nccl: Communicator, stream: Stream) -> None:
            with reduction.op(nccl) as how:
                if op.kind == "reduce":
                    nccl.reduce(wire, wire, how, root=op.root, stream=stream)
                else:
                    nccl.allreduce(wire, wire, how, stream=stream)

        has_result = op.kind == "all_reduce" or op.root == self._rank
        finish = _finishing(reduction, values, wire) if has_result else None
        return self._ready([values], reduce, finish)

    def _moving(self, op: Op) -> Ready:
        targets, sources = ends_of(
            op, self._rank, self._world_size, lambda array, _: Operand(array)
        )
        if op.kind == "reduce_scatter":
            return self._reduce_scatter(op, targets.arrays[0], sources)
        if op.kind == "all_gather":
            [source] = sources.arrays
            if not targets.listed:
                return self._all_gather(targets.arrays[0], source)
            if _are_equal(targets):
                return self._all_gather_of_list(targets, source)
            sources = Parts([source] * self._world_size, sources.sizes, True)
        # NCCL's own all-to-all is no faster on ordinary memory, and not in all its versions.
        return self._exchange(sources, targets)

    def _all_gather(self, target: Operand, source: Operand) -> Ready:
        def begin(nccl: Communicator, stream: Stream) -> None:
            nccl.allgather(source.bytes, target.bytes, stream=stream)

        return self._ready([source, target], begin, _copying([target]))

    def _all_gather_of_list(self, targets: Parts[Operand], source: Operand) -> Ready:
        """Gather into equal parts at once, as all ranks do wherever each keeps them."""
        whole = whole_of(targets)
        if whole is not None:
            return self._all_gather(whole, source)
        room, pieces = staging_of(targets)

        def begin(nccl: Communicator, stream: Stream) -> None:
            nccl.allgather(source.bytes, room.bytes, stream=stream)

        def finish() -> None:
            for target, piece in zip(targets.arrays, pieces, strict=True):
                target.framework.assign(target.array, piece)

        return self._ready([source, room, *targets.arrays], begin, finish)

    def _reduce_scatter(self, op: Op, target: Operand, sources: Parts[Operand]) -> Ready:
        if sources.listed and _are_equal(sources):
            sources = Parts([_whole(sources)], sources.sizes, False)
        reduction = self._reduction(target, op)
        wires, room = [reduction.wire(each) for each in sources.arrays], reduction.wire(target)

        def begin(nccl: Communicator, stream: Stream) -> None:
            with reduction.op(nccl) as how:
                if not sources.listed:
                    nccl.reduce_scatter(wires[0], room, how, stream=stream)
                    return
                for root, wire in enumerate(wires):
                    if len(wire):
                        nccl.reduce(wire, room, how, root=root, stream=stream)

        operands = [target, *sources.arrays]
        return self._ready(operands, begin, _finishing(reduction, target, room))

    def _message(self, op: Op) -> Ready:
        sends = op.kind == "send"
        if op.peer is None:
            raise ValueError("NCCL cannot receive from anyone: say from which rank (src)")
        peer = op.peer
        check_peer("dst" if sends else "src", peer, self._rank, self._world_size)
        _check_no_tag(op.tag)
        message = Operand(op.input if sends else op.output)

        def begin(nccl: Communicator, stream: Stream) -> None:
            (nccl.send if sends else nccl.recv)(message.bytes, peer, stream=stream)

        if sends:
            return self._ready([message], begin)
        return self._ready([message], begin, _copying([message]), peer)

    def _barrier(self) -> Ready:
        token = Operand(loaded_framework().bytes_on(self._device, 1))  # captures refuse uploads

        def begin(nccl: Communicator, stream: Stream) -> None:
            nccl.allreduce(token.bytes, token.bytes, self._nccl.SUM, stream=stream)

        return self._ready([token], begin)

    def all_gather_numbers(self, own: NDArray[np.int64], timeout: float) -> NDArray[np.int64]:
        framework, shape = loaded_framework(), (self._world_size, own.size)
        everyone = framework.uploaded(np.zeros(shape, np.int64), self._device)
        array = framework.uploaded(own, self._device)
        self.all_gather(everyone, array, timeout, async_op=True).wait(timeout)
        return framework.downloaded(everyone)

    def _ready(
        self,
        operands: Sequence[Operand],
        begin: Callable[[Communicator, Stream], None],
        finish: Callable[[], None] | None = None,
        sender: int | None = None,
    ) -> Ready:
        """Return an operation: `begin` what NCCL does, then `finish`, if anything is left."""
        for operand in operands:
            operand.check_device(self._device)

        def together(*, stream: Stream) -> None:
            with self._nccl.group():
                if any(operand.size for operand in operands):
                    begin(self._communicator, stream)

        frameworks = {operand.framework for operand in operands}
        held = operands, begin  # which may hold copies in another dtype
        return Ready(
            together, (), held, frameworks, operands=operands, finish=finish, sender=sender
        )

    def _exchange(self, outgoing: Parts[Operand], incoming: Parts[Operand]) -> Ready:
        """Send each rank its part, and receive one from it."""

        def begin(nccl: Communicator, stream: Stream) -> None:
            for rank, memory in memories(outgoing):
                nccl.send(memory, rank, stream=stream)
            for rank, memory in memories(incoming):
                nccl.recv(memory, rank, stream=stream)

        operands = [*outgoing.arrays, *incoming.arrays]
        return self._ready(operands, begin, _copying(incoming.arrays))

    def _check_communicator(self) -> None:
        if self._is_suspended:
            return  # nothing is under way
        state = self._communicator.get_async_error()
        if int(state) not in (_SUCCESS, _IN_PROGRESS):
            raise RuntimeError(f"{self._nccl.get_error_string(state)} (NCCL_DEBUG=WARN says more)")

    def _reduction(self, values: Operand, op: Op) -> Reduction:
        return Reduction(self._nccl, values.dtype.name, op.reduction, self._world_size)


def _are_equal(parts: Parts[Operand]) -> bool:
    """Return whether the parts have one size, not 0, which all ranks know."""
    return parts.sizes[0] > 0 and len(set(parts.sizes)) == 1


def _whole(parts: Parts[Operand]) -> Operand:
    """Return one array with the contents of equal parts: the one that they lie in, or a copy."""
    whole = whole_of(parts)
    if whole is None:
        whole, pieces = staging_of(parts)
        for part, piece in zip(parts.arrays, pieces, strict=True):
            part.framework.assign(piece, part.flat)
    return whole


def _finishing(reduction: Reduction, values: Operand, wire: Any) -> Callable[[], None] | None:
    """Return a function that moves a result to its array; None if NCCL does that."""
    return partial(reduction.finish, values, wire) if reduction.has_to_finish(values) else None


def _copying(operands: Sequence[Operand]) -> Callable[[], None] | None:
    """Return a function that copies results to arrays that are not contiguous; None if none are."""
    copied = [operand for operand in operands if operand.is_copied]

    def finish() -> None:
        for operand in copied:
            operand.finish()

    return finish if copied else None


def _check_no_tag(tag: int | None) -> None:
    if tag != 0:
        raise ValueError(f"NCCL has no tags: messages arrive in order, so use tag 0, not {tag!r}")
