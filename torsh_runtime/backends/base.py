"""The Backend port: collectives among a fixed set of ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.operation import (
    Operations,
)
from torsh_runtime.backends.operation import (
    PremulSum as PremulSum,
)
from torsh_runtime.backends.operation import (
    Reduce as Reduce,
)
from torsh_runtime.backends.operation import (
    ReduceOp as ReduceOp,
)
from torsh_runtime.backends.spares import Spares
from torsh_runtime.backends.work import COMPLETED, Work
from torsh_runtime.enumerations import CommunicationStrategy as CommunicationStrategy
from torsh_runtime.store.base import Entry

PATIENCE = 600.0
"""Seconds that a suspended group's ranks have to come to a block, unless told otherwise."""


class Envelope(NamedTuple):
    """Describes a message that has arrived and that nobody has received; see probe().

    Example:
        ```python
        found = tr.probe()
        print(f"{found.num_bytes} bytes from rank {found.source} with tag {found.tag}")
        ```
    """

    source: int
    """The rank that it comes from."""
    tag: int
    """The tag that its sender gave."""
    num_bytes: int
    """The message's size in bytes."""


class BackendType(StrEnum):
    """Names the backends that carry out a group's operations.

    Example:
        ```python
        tr.init_process_group(tr.BackendType.NATIVE)  # or "native"
        ```
    """

    NATIVE = "native"
    """Shared memory within a node, TCP between nodes, in C++; the default on CPUs."""
    NCCL = "nccl"
    """NVIDIA GPUs: cupy arrays and torch CUDA tensors."""
    MPI = "mpi"
    """The MPI library that mpi4py was built with."""
    GLOO = "gloo"
    """PyTorch's Gloo."""
    SINGLE = "single"
    """A world size of 1: there is nothing to communicate."""


class ByDevice(NamedTuple):
    """Two backends of one group: each has the arrays of its kind of device."""

    cpu: BackendType
    cuda: BackendType

    @property
    def value(self) -> str:
        """Return the devices with their backends, such as "cpu:native,cuda:nccl"."""
        return ",".join(f"{device}:{kind}" for device, kind in self._asdict().items())

    def __str__(self) -> str:
        return self.value


BackendKind = BackendType | ByDevice
"""The backend of a group: a single one, or one for each kind of device."""


class MeetingStore(Protocol):
    """Lists the operations of a store that ranks need to rendezvous; StoreClient has them."""

    def put(self, key: str, value: bytes) -> object: ...
    def get(self, key: str) -> Entry | None: ...
    def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """Holds known properties of a group. Backends that wrap another one pass them on unchanged."""

    is_in_node: bool = False
    """True if all ranks are known to be on one machine."""
    held_bytes: int = 0
    """The number of bytes of messages to one rank, in total, that leave their sender before they
    are received and without a thread that moves them; 0 if it is not known.
    """


class Registration(Protocol):
    """Represents memory that a backend has been told of, so that it moves it with fewer copies."""

    @property
    def is_valid(self) -> bool:
        """Return whether the backend still knows the memory."""

    def close(self) -> None:
        """Let the backend forget it. The memory's owner is kept until that is so."""


class Backend(Operations):
    """Carries out the operations of one rank of a group. Ranks and roots are numbered within the
    group, from 0.

    Arrays are of a dtype of `enumerations.DTYPES` or, on CPUs and where they are only moved, of any
    other dtype of fixed size. They may have any strides; contiguous ones are used in place. On CPUs
    they are numpy arrays (bfloat16 by ml_dtypes), other buffers, or torch CPU tensors; on GPUs cupy
    arrays or torch CUDA tensors. An input may be exactly this rank's part of the output or the
    other way round; any other overlap is undefined. Every rank must make the same calls, with the
    same dtype and shapes, in the same order, except for send and recv.

    `outputs` and `inputs` have a part for each rank: a list or tuple of arrays, in order of rank,
    whose sizes may differ; or, in all_gather, reduce_scatter and all_to_all, one array to be cut
    into world_size equal parts. All ranks must use the same of these two forms.

    `timeout` is in seconds, counted from when the operation begins. With `async_op` a call may
    return before the operation is complete; the arrays belong to it until its Work is done. Wrong
    arguments raise TypeError or ValueError before anything is communicated. A failure raises
    CommError (PeerLost, CommTimeout, CommMismatch, CommAborted), from the call or from Work.wait,
    on every rank of the group, which cannot be used afterwards; the contents of output arrays are
    then undefined.
    """

    type: BackendKind

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size

    @property
    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Return the number of ranks in the group."""
        return self._world_size

    @property
    def members(self) -> Sequence[Backend]:
        """Return the backends of this one: itself, or one for each kind of device."""
        return (self,)

    def name_ranks(self, names: Sequence[str], axis: str) -> None:
        """Set the names by which errors call the ranks, and the mesh axis that they are along.

        `axis` is "" if there is none. Backends whose errors name no ranks do nothing.
        """

    def note_as(self, name: str, job_ranks: Sequence[int] = ()) -> None:
        """Note its operations in the recording from now on, as those of the group of this name.

        `job_ranks` are the group's ranks as the launched job numbers them; () is unknown.
        """

    def note_title(self, title: str) -> None:
        """Note in the recording what people call the group, such as the axis of a mesh."""

    def take_from(self, spares: Spares) -> None:
        """Take shared memory from there where it fits, and leave it there. Backends need not."""

    @property
    def job_ranks(self) -> Sequence[int]:
        """Return the group's ranks as the launched job numbers them.

        The number is -1 for a rank of a different job. The result is () if the numbers are not
        known.
        """
        return ()

    @property
    @abstractmethod
    def failed(self) -> bool:
        """Return whether an operation of this rank has failed, so that the group is unusable."""

    def all_reduce_coalesced(
        self, arrays: Sequence[object], op: Reduce, timeout: float, async_op: bool = False
    ) -> list[Work]:
        """Reduce each of the arrays in place; several become one operation where that is faster."""
        return [self.all_reduce(array, op, timeout, async_op) for array in arrays]

    def all_gather_numbers(self, own: NDArray[np.int64], timeout: float) -> NDArray[np.int64]:
        """Return the numbers of all ranks, as an array with a row for each rank.

        The numbers are in host memory whatever arrays the backend takes. The call blocks, for at
        most `timeout` seconds.
        """
        everyone = np.empty((self.world_size, own.size), np.int64)
        self.all_gather(everyone, own, timeout)
        return everyone

    def probe(
        self, src: int | None, tag: int | None, timeout: float, wait: bool = True
    ) -> Envelope | None:
        """Return the envelope of the message that recv would get now.

        If none has come, wait for one for at most `timeout` seconds, or return None if `wait` is
        false. The message stays in the queue, so another thread may receive it first. Raises
        ValueError if the backend cannot look for messages.
        """
        raise ValueError(f"the {self.type} backend cannot look for messages: receive them")

    @property
    def facts(self) -> Facts:
        """Return the known properties of the group."""
        return Facts()

    def all_come(self, array: object) -> bool:
        """Return whether all ranks are about to call the next operation.

        If so, a caller that must not be delayed by them need not leave the operation to a different
        thread. Waits for the ranks for 20 ms at most, and only seldom if such waits have timed out.
        Call it right before the operation. It returns False if ranks cannot see each other's
        operations.

        `array` is one of the operation's arrays.
        """
        return False

    def in_order(self, call: Callable[[], None], async_op: bool = False) -> Work:
        """Call what makes several collectives, and return its Work.

        With `async_op` that may be on a thread of the group's, in the order of the operations that
        were begun. What it raises, Work.wait raises.
        """
        call()
        return COMPLETED

    def coalescing(self, timeout: float = PATIENCE) -> AbstractContextManager[object]:
        """Return a context manager that launches the asynchronous operations begun in it together.

        They are launched at its end, if the backend gains anything by that. Do not wait for them
        within the block. All ranks of a suspended group have to come within `timeout` seconds.
        """
        return nullcontext()

    def shared_memory(self, num_bytes: int, timeout: float) -> NDArray[np.uint8]:
        """Return `num_bytes` bytes of this rank's own that collectives use in place.

        Collectives need no copies through buffers for this memory, until the group is closed. All
        ranks must ask for the same number of bytes at the same time. Backends without such memory
        return ordinary memory.
        """
        return np.empty(num_bytes, np.uint8)

    def common_memory(self, num_bytes: int, timeout: float) -> memoryview | None:
        """Return `num_bytes` bytes that all ranks share.

        The memory is valid until the group is closed, and then as long as it is used. All ranks
        must ask for the same number of bytes at the same time. Returns None, on all ranks, if they
        have no memory in common.
        """
        return memoryview(bytearray(num_bytes)) if self.world_size == 1 else None

    def subgroup(
        self, store: MeetingStore, name: str, ranks: Sequence[int], timeout: float
    ) -> Backend | None:
        """Return this rank's backend of a new group of some of the ranks, in the order of `ranks`.

        All of these ranks call it with the same name, which no group had before. This group must be
        open, but it may have failed.

        Returns None, on all of them, if they have to rendezvous over the store, whose keys are the
        new group's: while a rank is awaited, the others check there whether that has happened.
        `timeout` is in seconds, for the rendezvous. Raises what creating a group raises, and has
        then reported it in the store.
        """
        return None

    def register_memory(self, address: int, num_bytes: int, owner: object) -> Registration | None:
        """Tell the backend of memory on a GPU that operations will use again and again.

        All ranks do that at the same point of their operations. `owner` keeps the memory. Returns
        None if that gains nothing, or cannot be done before the group's first operation on GPUs.
        """
        return None

    def suspend(self, timeout: float) -> None:
        """Give back memory that the group holds beyond its connections, until its next operation.

        All ranks call it at the same time. It waits until what was begun is over, for at most
        `timeout` seconds. Backends that hold little give back nothing.
        """
        self.barrier(timeout)

    def resume(self, timeout: float) -> None:
        """Take the memory again, as the next operation would. All ranks call it."""
        if self.failed:
            self.barrier(timeout)  # which raises what the group has ended with

    @abstractmethod
    def abort(self) -> None:
        """End all pending and later operations of all ranks with CommAborted. Any thread."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group; peers that still need this rank get PeerLost."""
