"""Follows one set of ranks on Dask workers until it ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from distributed import CancelledError, wait

from torsh_runtime.errors import CommError, CommTimeout, StoreError, WorkerFailed
from torsh_runtime.integrations import placed
from torsh_runtime.integrations.dask.workers import addresses, call
from torsh_runtime.integrations.placed import RankRepeated, StartTimeout

_PAUSE = 0.5
"""Seconds between two checks of which workers exist."""
NOTICE = 10.0
"""Seconds that the scheduler may take to notice a worker that its peers have lost."""
_LEAVE = 60.0
"""Seconds that ranks may take to end once one of them has ended."""
_SETTLE = 2.0
"""Seconds to wait for further workers before the ranks restart on the new ones."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Tells why ranks ended before the function returned."""

    lost: tuple[str, ...]
    """The workers that are gone."""
    came: int
    """Number of new workers that can take ranks."""

    @property
    def for_growth(self) -> bool:
        """Return whether no worker was lost."""
        return not self.lost

    def __str__(self) -> str:
        if self.lost:
            return f"Dask worker {', '.join(self.lost)} was lost"
        return f"{self.came} Dask workers have come"


class Attempt:
    """Represents the ranks that were started together."""

    def __init__(
        self, client: Any, workers: Sequence[str], futures: Sequence[Any], most: int
    ) -> None:
        """Take the worker and the future of each rank, and `most`, the largest number of ranks."""
        self._client = client
        self._workers = list(workers)
        self._futures = list(futures)
        self._most = most
        self._grew: float | None = None

    def outcome(self) -> list[Any] | Ended:
        """Return the ranks' results once all have returned, or why they ended before.

        Raises the function's own error, or WorkerFailed if ranks do not end or were cancelled.
        """
        while not self._is_over():
            pending = [future for future in self._futures if not future.done()]
            if not pending:
                return [future.result(timeout=_LEAVE) for future in self._futures]
            self._wait(pending, _PAUSE)
        for future in self._futures:
            if future.cancelled():
                raise _cancelled(future)
        came = self._came() if not self._failed() and not self._lost() else 0
        self._end(is_for_growth=came > 0)
        if came or self._lost():
            return Ended(tuple(self._lost()), came)
        raise self._cause()

    def _is_over(self) -> bool:
        """Return whether a rank has failed, a worker was lost or enough workers have come."""
        if self._failed() or self._lost():
            return True
        if not self._came():
            self._grew = None
            return False
        self._grew = self._grew or time.monotonic()
        is_full = len(self._workers) + self._came() == self._most
        return is_full or _is_past(self._grew + _SETTLE)

    def _end(self, is_for_growth: bool) -> None:
        """Wait until all ranks on living workers have ended; for growth, abort them.

        Otherwise wait also until it is known which lost worker they blame.
        """
        is_known = is_for_growth
        deadline = time.monotonic() + _LEAVE
        notice = time.monotonic() + NOTICE
        while True:
            lost = self._lost()
            pending = [
                future
                for address, future in zip(self._workers, self._futures, strict=True)
                if address not in lost and not future.done()
            ]
            is_known = bool(is_known or lost or self._own() or _is_past(notice))
            if self._late() or (not pending and is_known):
                return
            where = [self._workers[self._futures.index(future)] for future in pending]
            if pending and _is_past(deadline):
                if self._errors() and not lost:
                    return
                raise WorkerFailed(
                    f"the ranks on Dask workers {', '.join(where)} still run {_LEAVE:g} s after "
                    f"another one has ended: they do not come to a collective, which would end them"
                )
            if pending and is_for_growth:  # repeatedly, as a rank may only be about to start
                with suppress(WorkerFailed):  # a worker that leaves now counts as lost
                    call(self._client, where, placed.abort)
            if pending:
                self._wait(pending, _PAUSE)
            else:
                time.sleep(_PAUSE)

    def _cause(self) -> BaseException:
        """Return the error from which the others follow."""
        late = self._late()
        if late is None:
            return (self._own() or self._errors())[0]
        where = ", ".join(self._workers[rank] for rank in late.missing)
        detail = f", on {where}, which may have other tasks"
        return CommTimeout(late.op, late.sequence, late.seconds, late.missing, detail)

    def _late(self) -> StartTimeout | None:
        """Return the error saying that ranks have not started, or None if there is none."""
        return next((error for error in self._errors() if isinstance(error, StartTimeout)), None)

    def _failed(self) -> bool:
        return any(future.done() and future.status != "finished" for future in self._futures)

    def _errors(self) -> list[BaseException]:
        found = map(_error, self._futures)
        return [error for error in found if error is not None]

    def _own(self) -> list[BaseException]:
        """Return the errors that do not blame another rank."""
        errors = self._errors()
        return [error for error in errors if not isinstance(error, CommError | StoreError)]

    def _lost(self) -> list[str]:
        there = set(addresses(self._client))
        return [
            address
            for address, future in zip(self._workers, self._futures, strict=True)
            if address not in there or isinstance(_error(future), RankRepeated)
        ]

    def _came(self) -> int:
        """Return how many ranks can be added."""
        new = set(addresses(self._client)) - set(self._workers)
        return max(min(len(new), self._most - len(self._workers)), 0)

    @staticmethod
    def _wait(pending: Sequence[Any], seconds: float) -> None:
        with suppress(TimeoutError, CancelledError):
            wait(pending, timeout=seconds, return_when="FIRST_COMPLETED")


def _is_past(moment: float) -> bool:
    return time.monotonic() > moment


def _cancelled(future: Any) -> WorkerFailed:
    return WorkerFailed(
        f"Dask has cancelled a rank's task, {future.key}: client.cancel() or client.restart() was "
        f"called, or the scheduler has gone"
    )


def _error(future: Any) -> BaseException | None:
    """Return a rank's error, or None if it has not failed or is still running."""
    if not future.done() or future.status == "finished":
        return None
    if future.cancelled():
        return _cancelled(future)
    error: BaseException | None = future.exception(timeout=_LEAVE)
    return error
