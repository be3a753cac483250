"""The Backend port: collectives among a fixed set of ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum, StrEnum
from typing import ClassVar

from torsh_runtime.backends.work import Work


class ReduceOp(IntEnum):
    """How values of different ranks become one. Integers wrap around on overflow."""

    SUM = 0
    AVG = 1
    """The sum divided by the world size; integers round towards zero."""
    MIN = 2
    """NaN if any rank has NaN, as numpy.minimum."""
    MAX = 3
    """NaN if any rank has NaN, as numpy.maximum."""


class BackendType(StrEnum):
    """The backends by name."""

    NATIVE = "native"
    """Shared memory within a node, in C++; the default."""
    SINGLE = "single"
    """World size 1: nothing to communicate."""


class Backend(ABC):
    """One rank's end of a group.

    Arrays are numpy arrays or buffers of a dtype of `arrays.SUPPORTED_DTYPES`, of any strides;
    contiguous ones are used in place. Input and output may be the same memory, or one this rank's
    part of the other; any other overlap is undefined. Every rank must make the same calls in the
    same order. `timeout` is in seconds.

    Each call may raise TypeError or ValueError for arrays that do not fit, before anything was
    communicated, and CommError (PeerLost, CommTimeout, CommMismatch, CommAborted) on every rank of
    the group, which is dead from then on; the contents of output arrays are undefined after that.
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
    def all_reduce(self, array: object, op: ReduceOp, timeout: float) -> Work:
        """Reduce in place; all ranks get identical bits, also from run to run."""

    @abstractmethod
    def broadcast(self, array: object, root: int, timeout: float) -> Work:
        """Copy root's array into everyone's."""

    @abstractmethod
    def all_gather(self, output: object, array: object, timeout: float) -> Work:
        """Concatenate everyone's array, in order of rank, into output (world_size times as
        many elements)."""

    @abstractmethod
    def reduce_scatter(self, output: object, array: object, op: ReduceOp, timeout: float) -> Work:
        """Reduce everyone's array (world_size times as many elements as output); rank r gets
        the r-th part."""

    @abstractmethod
    def barrier(self, timeout: float) -> Work:
        """Return when every rank has called it."""

    @abstractmethod
    def abort(self) -> None:
        """End all pending and later operations of all ranks with CommAborted. Any thread."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group; peers that still need this rank get PeerLost."""
