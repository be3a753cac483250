"""Puts off NCCL's communicator of a group until the group's first operation on GPUs."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import cast

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.base import PATIENCE, Backend, BackendType, Registration
from torsh_runtime.backends.library.failure_notifications import (
    Call,
    FailureCause,
    FailureNotifications,
)
from torsh_runtime.backends.library.operands import check_peer
from torsh_runtime.backends.nccl.backend import NcclBackend
from torsh_runtime.backends.nccl.connecting import Place, Wait, communicator, in_thread
from torsh_runtime.backends.nccl.device import framework_of
from torsh_runtime.backends.nccl.launching import Companion
from torsh_runtime.backends.nccl.library import Communicator, Cuda, Nccl
from torsh_runtime.backends.nccl.loading import await_loaded, load, unavailable
from torsh_runtime.backends.nccl.pairs import PairCommunicator, PairNotifications
from torsh_runtime.backends.operation import OBJECTS, Op
from torsh_runtime.backends.recorder import note_title
from torsh_runtime.backends.registry import is_available
from torsh_runtime.backends.work import Work
from torsh_runtime.errors import CommError, CommTimeout
from torsh_runtime.store.client import StoreClient

_OTHER_MAKES_IT = (
    ": another thread of this process, whose operation has a longer timeout, is making NCCL's "
    "communicator"
)
_LOADING = ": nccl4py is still being loaded. See whether the GPUs' driver hangs (dmesg)"
_FIRST = 1
"""Number of the operation that makes the communicator: it needs all ranks, as a collective does."""


class LateNcclBackend(Backend):
    """Carries out operations by a NcclBackend, which the group's first operation on GPUs makes.

    All ranks of the group have to make one then, and get the same error if one of them cannot. The
    group's device is that of the first array, or the current one in an operation without arrays. A
    message that comes before, and not in a block of operations, takes its two ranks only, which get
    a communicator of their own.
    """

    type = BackendType.NCCL

    def __init__(self, place: Place, news: FailureNotifications) -> None:
        super().__init__(place.rank, len(place.ranks))
        self._place = place
        self._news = news
        self._made: NcclBackend | None = None
        self._parts: dict[int | None, NcclBackend] = {}
        """What was made: by the other rank of a pair, or None for all ranks."""
        self._making: defaultdict[int | None, threading.Lock] = defaultdict(threading.Lock)
        self._state = threading.Lock()
        self._cause: FailureCause | None = None
        self._closed = False
        self._companion: Companion | None = None
        self._block: tuple[int, ExitStack] | None = None
        self._name = ""
        self._job_ranks: Sequence[int] = ()

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
        return cls(Place(store, rank, range(world_size)), news)

    @property
    def job_ranks(self) -> Sequence[int]:
        return self._job_ranks

    @property
    def failed(self) -> bool:
        return self._cause is not None or any(made.failed for made in [*self._parts.values()])

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        made = self._made or self._first(op, timeout)
        if self._block is not None:
            self._launch_together(made)
        elif made is self._made:
            self.run = made.run  # type: ignore[method-assign]  # further calls go there directly
        return made.run(op, timeout, async_op)

    def all_gather_numbers(self, own: NDArray[np.int64], timeout: float) -> NDArray[np.int64]:
        made = self._made or self._join("all_gather", None, timeout)
        return made.all_gather_numbers(own, timeout)

    @contextmanager
    def coalescing(self, timeout: float = PATIENCE) -> Iterator[None]:
        with ExitStack() as block:
            self._block = threading.get_ident(), block
            try:
                if self._made is not None:
                    self._launch_together(self._made, timeout)
                yield
            finally:
                self._block = None

    def _launch_together(self, made: NcclBackend, timeout: float = PATIENCE) -> None:
        """Launch the calling thread's operations at the end of its block, if it is in one."""
        if self._block is not None and self._block[0] == threading.get_ident():
            block, self._block = self._block[1], None
            block.enter_context(made.coalescing(timeout))

    def note_as(self, name: str, job_ranks: Sequence[int] = ()) -> None:
        self._name = name
        self._job_ranks = job_ranks

    def note_title(self, title: str) -> None:
        if self._name:
            note_title(self._name, title)

    def accompany(self, companion: Companion) -> None:
        """Join a different backend in one group, as NcclBackend.accompany() does."""
        self._companion = companion

    def ended(self) -> FailureCause | None:
        """Return why no operation can be completed any more, or None if operations still can."""
        cause = self._cause
        if cause is None and self._made is not None:
            return self._made.ended()
        if cause is None and self._closed:
            return FailureCause("CommAborted", ("the process group is closed; make a new one",))
        if cause is None:
            cause = self.cause()
            return None if cause is None else self._end(cause)
        return cause

    def cause(self) -> FailureCause | None:
        """Return why another part of the group has failed, or None if none has."""
        if self._cause is not None or self._companion is None:
            return self._cause
        return self._companion.cause()

    def end(self, cause: FailureCause) -> None:
        """End all parts of the group, because one has failed, which calls this."""
        self._note(cause)
        for made in [*self._parts.values()]:
            made.end_apart(cause)

    def told(self) -> None:
        """Note that the program has heard of the group's failure."""
        for made in [*self._parts.values()]:
            made.told()

    def register_memory(self, address: int, num_bytes: int, owner: object) -> Registration | None:
        made = self._made
        return None if made is None else made.register_memory(address, num_bytes, owner)

    def suspend(self, timeout: float) -> None:
        self._check_usable()
        for made in self._in_order():
            made.suspend(timeout)

    def resume(self, timeout: float) -> None:
        self._check_usable()
        for made in self._in_order():
            made.resume(timeout)

    def _in_order(self) -> list[NcclBackend]:
        """Return what was made, in an order that keeps ranks from waiting for each other."""
        parts = {
            () if peer is None else tuple(sorted((self._rank, peer))): made
            for peer, made in [*self._parts.items()]
        }
        return [parts[key] for key in sorted(parts)]

    def abort(self) -> None:
        text = f"rank {self._rank} aborted the group. Destroy the process group and make a new one."
        self._note(FailureCause("CommAborted", (text,)))
        for made in [*self._parts.values()]:
            made.abort()

    def close(self) -> None:
        with self._state:
            was_closed, self._closed = self._closed, True
        with ExitStack() as leaving:  # also if one of them raises an error
            for made in self._parts.values():
                leaving.callback(made.close)
            if self._made is None and not was_closed:
                self._news.leave(0)
            self._companion = None

    def _first(self, op: Op, timeout: float) -> NcclBackend:
        if op.kind in OBJECTS:
            raise ValueError(f"the nccl backend cannot carry objects, as {op.kind} does")
        device, peer = _device(op), None
        if "tag" in op.takes and self._block is None and self._world_size > 2:
            if op.peer is None:
                raise ValueError("NCCL cannot receive from anyone: say from which rank (src)")
            peer = op.peer
            check_peer("src" if op.kind == "recv" else "dst", peer, self._rank, self._world_size)
        return self._join(op.kind, device, timeout, peer)

    def _join(
        self, kind: str, device: int | None, timeout: float, peer: int | None = None
    ) -> NcclBackend:
        """Return the group's backend, or that of the pair with `peer`; make it if need be."""
        making = self._making[peer]
        if not making.acquire(timeout=timeout):
            late = CommTimeout(kind, _FIRST, timeout, (), _OTHER_MAKES_IT)
            raise self._end(FailureCause.of(late)).error()
        try:  # threads that come second have waited for the one that makes it
            if self._made is None and peer not in self._parts:
                self._make(kind, device, timeout, peer)
            return self._made or self._parts[peer]
        finally:
            making.release()

    def _make(self, kind: str, device: int | None, timeout: float, peer: int | None) -> None:
        """Make a communicator with the other ranks, or with `peer` alone.

        Raises the CommError that all ranks raise if one of them cannot, and names that one.
        """
        call = Call(kind, _FIRST) if peer is None else Call(kind, 0, peer, True)
        place = self._place if peer is None else self._place.pair(peer)
        wait = Wait(call, timeout, lambda: self._look(call))
        self._check_usable()
        try:
            in_thread(await_loaded, wait, _LOADING)
            nccl, cuda, own = load(device)
            communicator(place, nccl, wait, own, lambda made: self._adopt(nccl, cuda, made, peer))
        except BaseException as error:
            if not self._closed:  # else by another thread; the others hear that it has left
                told = self._end(self._failure(kind, error))
                self.told()
                if isinstance(error, Exception):
                    raise told.error() from error
            raise

    def _adopt(self, nccl: Nccl, cuda: Cuda, made: Communicator, peer: int | None) -> None:
        try:
            with self._state:
                self._take(nccl, cuda, made, peer)
        except BaseException:
            made.abort()  # may wait for the GPU, and so holds nothing that others need
            raise

    def _take(self, nccl: Nccl, cuda: Cuda, made: Communicator, peer: int | None) -> None:
        if self._cause is not None or self._closed:
            raise CommError("the communicator was given up before it was there")
        backend = self._backend(nccl, cuda, made, peer)
        if self._name:
            backend.note_as(self._name, self._job_ranks)
        has_pairs = peer is not None or self._parts
        companion = self if has_pairs else self._companion
        if companion is not None:
            backend.accompany(companion)
        self._parts[peer] = backend
        if peer is None:
            self._made = backend

    def _backend(self, nccl: Nccl, cuda: Cuda, made: Communicator, peer: int | None) -> NcclBackend:
        if peer is None:
            return NcclBackend(nccl, cuda, made, self._news)
        pair = cast(Communicator, PairCommunicator(made, self._rank, self._world_size))
        return NcclBackend(nccl, cuda, pair, PairNotifications(self._news))

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
            self.told()
            raise cause.error()

    def _end(self, cause: FailureCause) -> FailureCause:
        """End the group after a failure; return the cause, which is what any rank noted first."""
        told = self._note(cause)
        self._end_all(told)
        return told

    def _note(self, cause: FailureCause) -> FailureCause:
        with self._state:
            if self._cause is None:
                told = self._news.report(cause)._replace(members=tuple(self._job_ranks))
                if self._companion is not None:
                    self._companion.end(told)
                self._cause = told
            return self._cause

    def _end_all(self, cause: FailureCause) -> None:
        for made in [*self._parts.values()]:
            made.end(cause)


def _device(op: Op) -> int | None:
    """Return the number of the GPU that the operation's first array is on; None without arrays.

    Raises TypeError if it is not on one.
    """
    for given in op.arrays.values():
        for array in given if isinstance(given, list | tuple) else (given,):
            if array is not None:
                return framework_of(array).device(array)
    return None
