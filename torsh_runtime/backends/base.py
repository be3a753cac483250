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
from torsh_runtime.backends.work import COMPLETED, Work
from torsh_runtime.enumerations import CommunicationStrategy as CommunicationStrategy
from torsh_runtime.store.base import Entry


class Envelope(NamedTuple):
    """A message that has come, and that nobody has received."""

    source: int
    """The rank it comes from."""
    tag: int
    num_bytes: int


class BackendType(StrEnum):
    """The backends by name."""

    NATIVE = "native"
    """Shared memory within a node, TCP between nodes, in C++; the default on CPUs."""
    NCCL = "nccl"
    """NVIDIA GPUs: cupy arrays and torch CUDA tensors."""
    MPI = "mpi"
    """Whatever MPI library mpi4py was built with."""
    GLOO = "gloo"
    """PyTorch's Gloo."""
    SINGLE = "single"
    """World size 1: nothing to communicate."""


class ByDevice(NamedTuple):
    """Two backends of one group: each has the arrays of its kind of device."""

    cpu: BackendType
    cuda: BackendType

    @property
    def value(self) -> str:
        """ "cpu:native,cuda:nccl"."""
        return ",".join(f"{device}:{kind}" for device, kind in self._asdict().items())

    def __str__(self) -> str:
        return self.value


BackendKind = BackendType | ByDevice
"""What the backend of a group is."""


class MeetingStore(Protocol):
    """What ranks need of a store to meet; StoreClient has it."""

    def put(self, key: str, value: bytes) -> object: ...
    def get(self, key: str) -> Entry | None: ...
    def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a group. Who wraps a backend passes them on as a whole."""

    is_in_node: bool = False
    """Whether all ranks are known to be on one machine."""
    held_bytes: int = 0
    """Messages of so many bytes to a rank, all together, leave their sender before they are
    received, without a thread that brings them; 0 where that is not known."""


class Backend(Operations):
    """One rank's end of a group. Ranks and roots are the group's own, from 0.

    Arrays are of a dtype of `enumerations.DTYPES`, or, on CPUs and where they are only moved, of
    any other of fixed size, and of any strides; contiguous ones are used in place.
    On CPUs they are numpy arrays (bfloat16 by ml_dtypes), other buffers, or torch CPU tensors; on
    GPUs cupy arrays or torch CUDA tensors. An input may be, exactly, this rank's part of the
    output or the other way round; any other overlap is undefined. Every rank must make the same
    calls, with the same dtype and shapes, in the same order, except for send and recv.

    `outputs` and `inputs` have a part for each rank: a list or tuple of arrays, in order of rank,
    whose sizes may differ; or, in all_gather, reduce_scatter and all_to_all, one array to be cut
    into world_size equal parts. Which of the two it is must be the same on all ranks.

    `timeout` is in seconds, counted from when the operation begins. With `async_op` a call may
    return before the operation is complete; the arrays belong to it until its Work is done. What
    is wrong with the arguments raises TypeError or ValueError before anything was communicated.
    A failure raises CommError (PeerLost, CommTimeout, CommMismatch, CommAborted), from the call or
    from Work.wait, on every rank of the group, which is dead from then on; the contents of output
    arrays are undefined after that.
    """

    type: BackendKind

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size

    @property
    def rank(self) -> int:
        """This process's rank in the group."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._world_size

    @property
    def members(self) -> Sequence[Backend]:
        """The backends that it is made of: itself, or one for each kind of device."""
        return (self,)

    def name_ranks(self, names: Sequence[str], axis: str) -> None:
        """What errors are to call the ranks, and the axis of a mesh that they are along, "" if of
        none. Backends whose errors name no ranks do nothing."""

    def note_as(self, name: str) -> None:
        """Note its operations in the recording from now on, as those of the group of this name."""

    def note_title(self, title: str) -> None:
        """Note in the recording what people call the group, such as the axis of a mesh."""

    @property
    def job_ranks(self) -> Sequence[int]:
        """Its ranks as the launched job numbers them, -1 for who is of another job; () where that
        is not known."""
        return ()

    @property
    @abstractmethod
    def failed(self) -> bool:
        """Whether an operation of this rank has failed: the group is of no more use."""

    def all_reduce_coalesced(
        self, arrays: Sequence[object], op: Reduce, timeout: float, async_op: bool = False
    ) -> list[Work]:
        """Reduce each of the arrays in place, where that gains anything several as one."""
        return [self.all_reduce(array, op, timeout, async_op) for array in arrays]

    def all_gather_numbers(self, own: NDArray[np.int64], timeout: float) -> NDArray[np.int64]:
        """Everyone's numbers, which lie in the processor's memory whatever arrays the backend
        takes: a row for each rank. It blocks."""
        everyone = np.empty((self.world_size, own.size), np.int64)
        self.all_gather(everyone, own, timeout)
        return everyone

    def probe(
        self, src: int | None, tag: int | None, timeout: float, wait: bool = True
    ) -> Envelope | None:
        """A message that recv would get now, or without `wait` None if none has come. It stays
        where it is, and another thread may be faster in receiving it."""
        raise ValueError(f"the {self.type} backend cannot look for messages: receive them")

    @property
    def facts(self) -> Facts:
        """What is known of the group."""
        return Facts()

    def all_come(self, array: object) -> bool:
        """Whether all ranks are about to call the next operation, so that a caller who must not be
        held up by them need not leave it to another thread. Waits for them for 20 ms at most, and
        seldom if that is in vain. To be called right before the operation. Where ranks do not see
        that of each other it is False. array: one of the operation's.
        """
        return False

    def in_order(self, call: Callable[[], None], async_op: bool = False) -> Work:
        """Call what makes several collectives. With `async_op` perhaps on a thread of the group's,
        in the order of the operations that were begun; what it raises, Work.wait raises."""
        call()
        return COMPLETED

    def coalescing(self) -> AbstractContextManager[object]:
        """A block at whose end the operations that were begun in it, with async_op, are launched
        together, where that gains anything; they are not to be waited for within it."""
        return nullcontext()

    def shared_memory(self, num_bytes: int, timeout: float) -> NDArray[np.uint8]:
        """This rank's own `num_bytes` bytes of memory that collectives use in place, without
        copies through buffers between them, until the group is closed. All ranks must ask for as
        many at the same time. Backends that have no such thing give ordinary memory.
        """
        return np.empty(num_bytes, np.uint8)

    def common_memory(self, num_bytes: int, timeout: float) -> memoryview | None:
        """The same `num_bytes` bytes for all ranks, until the group is closed, and then as long as
        they are used. All ranks must ask for as many at the same time. None, on all of them, where
        they have no memory in common.
        """
        return memoryview(bytearray(num_bytes)) if self.world_size == 1 else None

    def subgroup(
        self, store: MeetingStore, name: str, ranks: Sequence[int], timeout: float
    ) -> Backend | None:
        """This rank's end of a group of some of the ranks, in this order, who all call it, with the
        same name, which no group had before. It need not be alive itself, but open.

        None, on all of them, if they have to meet over the store, whose keys are the new group's:
        as long as one is awaited it is looked there whether that has happened. `timeout`: seconds
        to meet. Raises what making a group raises, and has told of it in the store.
        """
        return None

    @abstractmethod
    def abort(self) -> None:
        """End all pending and later operations of all ranks with CommAborted. Any thread."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group; peers that still need this rank get PeerLost."""
