"""Declares the used parts of nccl4py and cuda-core, neither of which is fully typed.

Arrays on a GPU are passed in the form in which `device.Framework` returns them: both libraries
accept them unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, SupportsBytes, SupportsInt

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Event(Protocol):
    """A point of a stream."""

    @property
    def is_done(self) -> bool:
        """Return whether the stream has reached this point."""


class Stream(Protocol):
    """Represents a CUDA stream."""

    @property
    def handle(self) -> SupportsInt:
        """Return the stream's handle in the driver."""

    def wait(self, event: Event) -> object:
        """Hold back what comes next until the event."""

    def record(self, event: Event | None = None) -> Event:
        """Put this event, or a new one, behind all that it has been given so far."""

    def close(self) -> None:
        """Release the stream."""


class Device(Protocol):
    """Represents a GPU of this machine."""

    @property
    def device_id(self) -> int:
        """Return the number of the device."""

    def set_current(self) -> object:
        """Make it the calling thread's current one."""

    def create_stream(self, *, options: object = None) -> Stream:
        """Make a stream on it."""

    def create_event(self) -> Event:
        """Make an event, to be recorded on its streams."""


class Streams(Protocol):
    """The class of streams."""

    def from_handle(self, handle: int) -> Stream:
        """Give the stream of this number."""


class Cuda(Protocol):
    """Describes the module cuda.core."""

    @property
    def Stream(self) -> Streams:  # noqa: N802  (cuda-core's name)
        """Return the class of streams."""

    def StreamOptions(self, *, priority: int) -> object:  # noqa: N802
        """Give the options of a stream to be created."""

    def Device(self, number: int = ...) -> Device:  # noqa: N802
        """Give the device of this number, or the current one."""


class Communicator(Protocol):
    """Represents one rank in an NCCL communicator."""

    rank: int
    nranks: int

    @property
    def device(self) -> Device:
        """Return the device of the communicator."""

    def broadcast(self, source: Any, target: Any, root: int, *, stream: Stream) -> object: ...
    def allreduce(self, source: Any, target: Any, op: Any, *, stream: Stream) -> object: ...
    def reduce(self, source: Any, target: Any, op: Any, *, root: int, stream: Stream) -> object: ...
    def allgather(self, source: Any, target: Any, *, stream: Stream) -> object: ...
    def reduce_scatter(self, source: Any, target: Any, op: Any, *, stream: Stream) -> object: ...
    def send(self, array: Any, peer: int, *, stream: Stream) -> object: ...
    def recv(self, array: Any, peer: int, *, stream: Stream) -> object: ...
    def create_pre_mul_sum(self, factor: NDArray[Any], dtype: object) -> object: ...
    def close_all_resources(self) -> object: ...
    def get_async_error(self) -> SupportsInt: ...
    def register_buffer(self, buffer: object) -> Any: ...
    def suspend(self) -> object: ...
    def resume(self) -> object: ...
    def abort(self) -> object: ...
    def destroy(self) -> object: ...


class Communicators(Protocol):
    """The class of communicators."""

    def init(self, world_size: int, rank: int, meeting: object) -> Communicator:
        """Create a communicator with the other ranks of the rendezvous."""


class Meetings(Protocol):
    """The class of the ids by which ranks rendezvous."""

    def from_bytes(self, content: bytes) -> object:
        """Return the id that a different rank has created."""


class Nccl(Protocol):
    """Describes the module nccl.core."""

    SUM: object

    @property
    def NcclDataType(self) -> Mapping[str, object]:  # noqa: N802  (nccl4py's names)
        """Return the dtypes by name."""

    @property
    def Communicator(self) -> Communicators:  # noqa: N802
        """Return the class of communicators."""

    @property
    def UniqueId(self) -> Meetings:  # noqa: N802
        """Return the class of the ids by which ranks rendezvous."""

    def get_unique_id(self) -> SupportsBytes:
        """Create an id by which ranks rendezvous."""

    def get_error_string(self, state: SupportsInt) -> str:
        """Describe an error code of NCCL."""

    def group(self) -> AbstractContextManager[object]:
        """Return a context manager whose calls are launched together."""
