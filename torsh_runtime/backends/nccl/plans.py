"""Operations on plain arrays, prepared once for all calls.

An array is plain if NCCL takes it as it is: contiguous, of a dtype of NCCL's own, on the group's
device, which is the calling thread's current one. What other arrays need is in `operations`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol

from torsh_runtime.backends.nccl.device import Framework, Operand
from torsh_runtime.backends.operation import Op

METHODS = {
    "all_reduce": "allreduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "allgather",
    "reduce_scatter": "reduce_scatter",
}
"""The operations that have plans, and the communicator's methods."""


class Ready(NamedTuple):
    """Describes an operation that can be handed to NCCL."""

    begin: Callable[..., object]
    """To be called with `arguments` and the stream."""
    arguments: Sequence[object]
    held: Sequence[object]
    """The memory that is in use until the operation is over."""
    frameworks: Collection[Framework]
    callers: Collection[int] | None = None
    """Handles of the current streams; None if the device has to be made current first."""
    operands: Sequence[Operand] = ()
    finish: Callable[[], None] | None = None
    """The function that moves the result to where it belongs; None if NCCL does that."""
    sender: int | None = None
    measured: tuple[int, int, int] | None = None
    """The dtype's number, the elements and the bytes, for the recording."""


class CurrentStream(Protocol):
    """Tells the current stream of a library, seen from the arrays of a call."""

    def __call__(self, arrays: Sequence[Any], device: int) -> int | None:
        """Return its handle; None unless all the arrays are plain."""


class Plan:
    """Prepares the calls of one operation on plain arrays of one class and dtype."""

    def __init__(
        self,
        begin: Callable[..., object],
        how: object,
        device: int,
        world_size: int,
        framework: Framework,
        dtype: tuple[int, int],
    ) -> None:
        """Prepare calls of `begin`, a communicator's method, with the reduction `how`, if any.

        `dtype` is its number and the bytes of an element.
        """
        self._begin = begin
        self._how = () if how is None else (how,)
        self._device = device
        self._world_size = world_size
        self._frameworks = (framework,)
        self._stream: CurrentStream = _stream_of(framework)
        self._dtype, self._width = dtype

    def ready(self, op: Op) -> Ready | None:
        """Return what to hand to NCCL; None unless the arrays are plain and fit together."""
        target: Any = op.output
        source: Any = op.input
        arrays: tuple[Any, ...] = (source, target)
        arguments: tuple[Any, ...] = (source, target, *self._how)
        measured = target
        if op.kind == "all_gather" or op.kind == "reduce_scatter":
            small, large = arrays if op.kind == "all_gather" else (target, source)
            if source.__class__ is not target.__class__ or source.dtype != target.dtype:
                return None
            if large.nbytes != small.nbytes * self._world_size:
                return None
            measured = source if small is source else target
        elif op.kind != "all_reduce":
            if type(op.peer) is not int or not 0 <= op.peer < self._world_size:
                return None
            arguments = (*arguments, op.peer)
        caller = self._stream(arrays, self._device)
        if caller is None or not (nbytes := measured.nbytes):
            return None
        sizes = self._dtype, nbytes // self._width, nbytes
        return Ready(self._begin, arguments, arrays, self._frameworks, (caller,), measured=sizes)


def _stream_of(framework: Framework) -> CurrentStream:
    """Return the function that tells the current stream of the framework's library."""
    library: Any = framework
    return _of_torch(library.torch) if hasattr(framework, "torch") else _of_cupy(library.cupy)


def _of_torch(torch: Any) -> CurrentStream:
    strided, cuda = torch.strided, torch.cuda

    def stream(arrays: Sequence[Any], device: int) -> int | None:
        for array in arrays:
            if array.layout is not strided or not array.is_contiguous() or array.is_neg():
                return None
            if array.device.index != device:
                return None
        if cuda.current_device() != device:
            return None
        return int(cuda.current_stream(device).cuda_stream)

    return stream


def _of_cupy(cupy: Any) -> CurrentStream:
    cuda = cupy.cuda

    def stream(arrays: Sequence[Any], device: int) -> int | None:
        for array in arrays:
            if not array.flags.c_contiguous or array.device.id != device:
                return None
        return int(cuda.get_current_stream().ptr) if cuda.Device().id == device else None

    return stream
