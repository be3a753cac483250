"""Stands for the default group's backend, and carries operations out again after a loss."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.base import PATIENCE, Backend
from torsh_runtime.backends.intercepting import Intercepting
from torsh_runtime.backends.operation import COLLECTIVES, Op, Reduce
from torsh_runtime.backends.work import COMPLETED, Work
from torsh_runtime.errors import (
    CommAborted,
    CommError,
    CommMismatch,
    ConfigError,
    PeerLost,
    StoreError,
    TorshError,
)
from torsh_runtime.recover.keeping import Kept

_LOST = (PeerLost, CommAborted)
"""The errors with which an operation ends when a worker is lost."""
_LOST_IN_MEETING = (CommError, StoreError)
"""The errors with which ranks fail to meet if one more is lost."""
_EXCHANGE = 3600.0
"""Seconds in which all ranks say where they stand; a rank that is lost meanwhile ends the wait."""


class Protector(Protocol):
    """Says what becomes of the process before each operation and after a loss."""

    def prepare(self) -> None:
        """Do what is due before an operation: this may be a copy when it returns."""

    def await_round(self, lost: TorshError | None) -> None:
        """Wait until the next round is formed. Raises `lost` if none is."""

    def meet(self) -> None:
        """Give the recorder a backend that connects the ranks of the round."""

    def first_needed(self) -> int:
        """Return the number of the first operation that any rank may have to repeat."""

    def give_up(self, reason: str) -> None:
        """Have nothing repeated from now on, for this reason."""

    def leave(self) -> None:
        """Have nothing repeated from now on, as this rank is about to leave."""


class Recorder(Intercepting):
    """Carries out the operations of one rank, and keeps those that a copy may have to repeat.

    All are complete when their calls return.
    """

    def __init__(self, backend: Backend, protector: Protector) -> None:
        super().__init__(backend)
        self._protector = protector
        self._kept: deque[Kept] = deque()
        self._is_on = True
        self.number = 0
        """The number of the operation that comes next."""
        self.kept_bytes = 0
        """The memory that the inputs of kept operations take."""
        self.longest = 0.0
        """The most seconds between two operations."""
        self._ended_at = time.monotonic()

    def take(self, backend: Backend) -> None:
        """Carry operations out by this backend from now on."""
        self._backend = backend

    def stop(self) -> None:
        """Keep nothing from now on, and let errors of lost workers come through."""
        self._is_on = False
        self._kept.clear()
        self.kept_bytes = 0

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        """Carry out the operation, as often as it takes until no worker is lost in it."""
        if self._is_on:
            self._protector.prepare()
        kept = self._keep(op, timeout) if self._is_on else None
        if kept is None:
            return op.begin(self._backend, timeout, async_op)
        while True:
            try:
                work = op.begin(self._backend, timeout)
                break
            except _LOST as lost:
                if not self._is_on:
                    raise
                self.recover(lost)
                kept.restore(op)
        kept.complete(op)
        self.number += 1
        self._drop()
        self._ended_at = time.monotonic()
        return work

    def _keep(self, op: Op, timeout: float) -> Kept | None:
        """Keep the operation; if that cannot be done, give up and return None."""
        if op.kind not in COLLECTIVES:
            self._protector.give_up("it sends messages from rank to rank")
            return None
        try:
            kept = Kept(op, timeout, self.number)
        except TypeError as error:
            self._protector.give_up(str(error))
            return None
        self.longest = max(self.longest, time.monotonic() - self._ended_at)
        self._kept.append(kept)
        self.kept_bytes += kept.num_bytes
        return kept

    def _drop(self) -> None:
        """Forget the operations that no rank repeats any more."""
        needed = self._protector.first_needed()
        while self._kept and self._kept[0].number < needed:
            self.kept_bytes -= self._kept.popleft().num_bytes

    def recover(self, lost: TorshError | None) -> None:
        """Meet the others after a loss, and repeat operations until all are where this rank is.

        lost: the error by which this rank knows of the loss; None in the copy of a lost worker.
        """
        while True:
            self._protector.await_round(lost)
            try:
                self._protector.meet()
                self.repeat()
                return
            except CommMismatch:
                raise
            except _LOST_IN_MEETING as again:
                lost = again

    def repeat(self) -> None:
        """Carry out what ranks that are behind this one need; they have come to it by then."""
        own = np.array([self.number], np.int64)
        behind = int(self._backend.all_gather_numbers(own, _EXCHANGE).min())
        done = [kept for kept in self._kept if kept.number < self.number]
        first = done[0].number if done else self.number
        if behind < first:
            raise ConfigError(
                f"rank {self.rank} keeps operations from {first} on, and the copy of a lost worker "
                f"has to repeat operation {behind}"
            )
        for kept in done[behind - first :]:
            kept.repeat(self._backend)

    def all_reduce_coalesced(
        self, arrays: Sequence[object], op: Reduce, timeout: float, async_op: bool = False
    ) -> list[Work]:
        return Backend.all_reduce_coalesced(self, arrays, op, timeout, async_op)

    def all_gather_numbers(self, own: NDArray[np.int64], timeout: float) -> NDArray[np.int64]:
        return Backend.all_gather_numbers(self, own, timeout)

    def all_come(self, array: object) -> bool:
        """Return that calls are to be complete when they return."""
        return self._is_on or super().all_come(array)

    def in_order(self, call: Callable[[], None], async_op: bool = False) -> Work:
        call()
        return COMPLETED

    def coalescing(self, timeout: float = PATIENCE) -> AbstractContextManager[object]:
        return nullcontext()

    def abort(self) -> None:
        self.stop()
        super().abort()

    def close(self) -> None:
        self._protector.leave()
        super().close()
