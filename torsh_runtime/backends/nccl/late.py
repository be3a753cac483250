"""Puts off NCCL's communicator of a group until the group's first operation on GPUs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.base import Backend, BackendType
from torsh_runtime.backends.library.failure_notifications import (
    Call,
    FailureCause,
    FailureNotifications,
)
from torsh_runtime.backends.nccl.backend import Companion, NcclBackend
from torsh_runtime.backends.nccl.connecting import Place, Wait, communicator
from torsh_runtime.backends.nccl.device import framework_of
from torsh_runtime.backends.nccl.library import Communicator, Cuda, Nccl
from torsh_runtime.backends.nccl.loading import load, unavailable
from torsh_runtime.backends.operation import OBJECTS, Op
from torsh_runtime.backends.recorder import note_title
from torsh_runtime.backends.registry import is_available
from torsh_runtime.backends.work import Work
from torsh_runtime.errors import CommError
from torsh_runtime.store.client import StoreClient

_FIRST = 1
"""Number of the operation that makes the communicator: it needs all ranks, as a collective does."""


class LateNcclBackend(Backend):
    """Carries out operations by a NcclBackend, which the group's first operation on GPUs makes.

    All ranks of the group have to make one then, and get the same error if one of them cannot. The
    group's device is that of the first array, or the current one in an operation without arrays.
    """

    type = BackendType.NCCL

    def __init__(self, place: Place, news: FailureNotifications) -> None:
        super().__init__(place.rank, place.world_size)
        self._place = place
        self._news = news
        self._made: NcclBackend | None = None
        self._making = threading.Lock()
        self._state = threading.Lock()
        self._cause: FailureCause | None = None
        self._closed = False
        self._companion: Companion | None = None
        self._block: ExitStack | None = None
        self._name = ""

    @classmethod
    def connect(
        cls, store: StoreClient, rank: int, world_size: int, timeout: float
    ) -> LateNcclBackend:
        """Wait until all ranks have come to the group, whose keys in the store must be fresh.

        Raises BackendUnavailable without a driver or nccl4py, and CommTimeout naming the ranks that
        did not come within `timeout` seconds.
        """
        if not is_available(cls.type):
            raise unavailable("There is no NVIDIA driver or no nccl4py")
        news = FailureNotifications(store, rank, world_size, cls.type)
        news.meet(timeout)
        return cls(Place(store, rank, world_size), news)

    @property
    def failed(self) -> bool:
        return self._cause is not None if self._made is None else self._made.failed

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        made = self._made or self._first(op, timeout)
        return made.run(op, timeout, async_op)

    def all_gather_numbers(self, own: NDArray[np.int64], timeout: float) -> NDArray[np.int64]:
        made = self._made or self._join("all_gather", None, timeout)
        return made.all_gather_numbers(own, timeout)

    @contextmanager
    def coalescing(self) -> Iterator[None]:
        with ExitStack() as block:
            if self._made is not None:
                block.enter_context(self._made.coalescing())
            self._block = block
            try:
                yield
            finally:
                self._block = None

    def note_as(self, name: str) -> None:
        self._name = name

    def note_title(self, title: str) -> None:
        if self._name:
            note_title(self._name, title)

    def accompany(self, companion: Companion) -> None:
        """Join a different backend in one group, as NcclBackend.accompany() does."""
        self._companion = companion

    def ended(self) -> FailureCause | None:
        """Return why no operation can be completed any more, or None if operations still can."""
        if self._made is not None:
            return self._made.ended()
        cause = self._cause
        if cause is None and self._closed:
            return FailureCause("CommAborted", ("the process group is closed; make a new one",))
        if cause is None and self._companion is not None:
            cause = self._companion.cause()
            return None if cause is None else self._end(cause)
        return cause

    def abort(self) -> None:
        text = f"rank {self._rank} aborted the group. Destroy the process group and make a new one."
        self._end(FailureCause("CommAborted", (text,)))

    def close(self) -> None:
        with self._state:
            was_closed, self._closed = self._closed, True
        if self._made is not None:
            self._made.close()
        elif not was_closed:
            self._news.leave(0)
            self._companion = None

    def _first(self, op: Op, timeout: float) -> NcclBackend:
        if op.kind in OBJECTS:
            raise ValueError(f"the nccl backend cannot carry objects, as {op.kind} does")
        return self._join(op.kind, _device(op), timeout)

    def _join(self, kind: str, device: int | None, timeout: float) -> NcclBackend:
        with self._making:  # threads that come second wait for the one that makes it
            if self._made is None:
                self._make(kind, device, timeout)
                if self._block is not None and self._made is not None:
                    self._block.enter_context(self._made.coalescing())
            assert self._made is not None
            return self._made

    def _make(self, kind: str, device: int | None, timeout: float) -> None:
        """Make the communicator with the other ranks.

        Raises the CommError that all ranks raise if one of them cannot, and names that one.
        """
        call = Call(kind, _FIRST)
        wait = Wait(call, timeout, lambda: self._look(call))
        self._check_usable()
        try:
            nccl, cuda, own = load(device)
            communicator(self._place, nccl, wait, own, lambda made: self._adopt(nccl, cuda, made))
        except BaseException as error:
            if not self._closed:  # else by another thread; the others hear that it has left
                told = self._end(self._failure(kind, error))
                if isinstance(error, Exception):
                    raise told.error() from error
            raise

    def _adopt(self, nccl: Nccl, cuda: Cuda, made: Communicator) -> None:
        with self._state:
            try:
                if self._cause is not None or self._closed:
                    raise CommError("the communicator was given up before it was there")
                backend = NcclBackend(nccl, cuda, made, self._news)
            except BaseException:
                made.abort()
                raise
            if self._name:
                backend.note_as(self._name)
            if self._companion is not None:
                backend.accompany(self._companion)
            self._made = backend

    def _failure(self, kind: str, error: BaseException) -> FailureCause:
        if isinstance(error, CommError):
            return FailureCause.of(error)
        who = f"rank {self._rank}"
        if isinstance(error, Exception):
            text = (
                f"{who} could not join the others in NCCL's communicator, in {kind}: "
                f"{str(error).rstrip('.')}. Each rank needs a GPU of its own; NCCL_DEBUG=WARN says "
                f"more. Make a new process group."
            )
            return FailureCause("CommError", (text,))
        text = f"{who} was interrupted in {kind} ({type(error).__name__})"
        return FailureCause("CommAborted", (f"{text}. Make a new process group.",))

    def _look(self, call: Call) -> None:
        self._check_usable()
        cause = self._news.look(call)
        if cause is not None:
            self._end(cause)
        self._check_usable()

    def _check_usable(self) -> None:
        cause = self.ended()
        if cause is not None:
            raise cause.error()

    def _end(self, cause: FailureCause) -> FailureCause:
        """End the group after a failure; return the cause, which is what any rank noted first."""
        with self._state:
            if self._cause is not None:
                return self._cause
            told = self._news.report(cause)
            companion = self._companion
            if companion is not None:
                companion.end(told)
            self._cause = told
        if self._made is not None:
            self._made.abort()
        return told


def _device(op: Op) -> int | None:
    """Return the number of the GPU that the operation's first array is on; None without arrays.

    Raises TypeError if it is not on one.
    """
    for given in op.arrays.values():
        for array in given if isinstance(given, list | tuple) else (given,):
            if array is not None:
                return framework_of(array).device(array)
    return None
