"""The Backend port: collectives among a fixed set of ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum, StrEnum
from typing import ClassVar, NamedTuple

from torsh_runtime.backends.work import Work


class ReduceOp(IntEnum):
    """How values of different ranks become one, as in torch.distributed.

    Integers wrap around on overflow; bool counts as one bit: SUM and MAX are OR, PRODUCT and MIN
    are AND. AVG and PREMUL_SUM are for numbers, MIN and MAX not for complex ones, BAND, BOR and
    BXOR for integers and bool. Other combinations raise TypeError.
    """

    SUM = 0
    AVG = 1
    """The sum divided by the world size; integers round towards zero."""
    PRODUCT = 2
    MIN = 3
    """NaN if any rank has NaN, as numpy.minimum."""
    MAX = 4
    """NaN if any rank has NaN, as numpy.maximum."""
    BAND = 5
    BOR = 6
    BXOR = 7
    PREMUL_SUM = 8
    """Each rank's values times its own factor, summed: see PremulSum. Floating point only."""


class PremulSum(NamedTuple):
    """The reduction PREMUL_SUM with this rank's factor."""

    factor: float


Reduce = ReduceOp | PremulSum


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


class Backend(ABC):
    """One rank's end of a group. Ranks and roots are the group's own, from 0.

    Arrays are of a dtype of `status.DTYPES` and of any strides; contiguous ones are used in place.
    On CPUs they are numpy arrays (bfloat16 by ml_dtypes), other buffers, or torch CPU tensors; on
    GPUs cupy arrays or torch CUDA tensors. An input may be, exactly, this rank's part of the
    output or the other way round; any other overlap is undefined. Every rank must make the same
    calls, with the same dtype and shapes, in the same order, except for send and recv.

    `timeout` is in seconds, counted from when the operation begins. With `async_op` a call may
    return before the operation is complete; the arrays belong to it until its Work is done. What
    is wrong with the arguments raises TypeError or ValueError before anything was communicated.
    A failure raises CommError (PeerLost, CommTimeout, CommMismatch, CommAborted), from the call or
    from Work.wait, on every rank of the group, which is dead from then on; the contents of output
    arrays are undefined after that.
    """

    type: ClassVar[BackendType]

    @property
    @abstractmethod
    def rank(self) -> int:
        """This process's rank in the group."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    @abstractmethod
    def failed(self) -> bool:
        """Whether an operation of this rank has failed: the group is of no more use."""

    @abstractmethod
    def all_reduce(self, array: object, op: Reduce, timeout: float, async_op: bool = False) -> Work:
        """Reduce in place; all ranks get identical bits, also from run to run."""

    @abstractmethod
    def reduce(
        self, array: object, root: int, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        """Reduce into root's array; the others' keep their contents."""

    @abstractmethod
    def broadcast(self, array: object, root: int, timeout: float, async_op: bool = False) -> Work:
        """Copy root's array into everyone's."""

    @abstractmethod
    def all_gather(
        self, output: object, array: object, timeout: float, async_op: bool = False
    ) -> Work:
        """Concatenate everyone's array, in order of rank, into output (world_size times as
        many elements)."""

    @abstractmethod
    def all_gather_list(
        self, outputs: Sequence[object], array: object, timeout: float, async_op: bool = False
    ) -> Work:
        """Copy rank r's array into outputs[r], for each r; sizes may differ from rank to rank."""

    @abstractmethod
    def gather(
        self,
        outputs: Sequence[object] | None,
        array: object,
        root: int,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        """Copy rank r's array into root's outputs[r], for each r; None on the other ranks."""

    @abstractmethod
    def scatter(
        self,
        array: object,
        inputs: Sequence[object] | None,
        root: int,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        """Copy root's inputs[r] into rank r's array, for each r; None on the other ranks."""

    @abstractmethod
    def reduce_scatter(
        self, output: object, array: object, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        """Reduce everyone's array (world_size times as many elements as output); rank r gets
        the r-th part."""

    @abstractmethod
    def reduce_scatter_list(
        self,
        output: object,
        inputs: Sequence[object],
        op: Reduce,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        """Reduce everyone's inputs[r] into rank r's output; sizes may differ with r."""

    @abstractmethod
    def all_to_all(
        self, output: object, array: object, timeout: float, async_op: bool = False
    ) -> Work:
        """Send the r-th of world_size equal parts of array to rank r, and put what rank r sent
        into the r-th part of output."""

    @abstractmethod
    def all_to_all_list(
        self,
        outputs: Sequence[object],
        inputs: Sequence[object],
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        """Send inputs[r] to rank r's outputs[own rank]; each pair may have a size of its own."""

    @abstractmethod
    def send(
        self, array: object, dst: int, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        """Send to one rank; complete when the array may be changed again. Messages with the same
        tag arrive in order. Unreceived ones up to 64 KiB for each pair of ranks never block."""

    @abstractmethod
    def recv(
        self, array: object, src: int | None, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        """Receive from one rank, or from any (None): Work.source is the rank it came from."""

    @abstractmethod
    def barrier(self, timeout: float, async_op: bool = False) -> Work:
        """Return when every rank has called it."""

    def coalescing(self) -> AbstractContextManager[object]:
        """A block at whose end the operations that were begun in it, with async_op, are launched
        together, where that gains anything; they are not to be waited for within it."""
        return nullcontext()

    def shared_memory(self, num_bytes: int, timeout: float) -> memoryview:
        """This rank's own `num_bytes` bytes of memory that collectives use in place, without
        copies through buffers between them, until the group is closed. All ranks must ask for as
        many at the same time. Backends that have no such thing give ordinary memory.
        """
        return memoryview(bytearray(num_bytes))

    @abstractmethod
    def abort(self) -> None:
        """End all pending and later operations of all ranks with CommAborted. Any thread."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group; peers that still need this rank get PeerLost."""
