"""Ends groups after failures, for backends whose library reports none of other ranks."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Sequence

from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.library.failure_notifications import (
    Call,
    FailureCause,
    FailureNotifications,
)
from torsh_runtime.backends.recorder import GroupRecorder, note_title

_LOOK = 0.25
"""Seconds of waiting between two looks at what the other ranks have noted."""
_LOOK_PER_RANK = 0.002
"""Seconds by which each rank makes looks rarer, for the store's sake."""
_CULPRIT = 1.0
"""Seconds after a library's failure in which to find out which peer has ended."""
_GRACE = 0.1
"""Seconds between passing a deadline and reading who is missing."""
_UNKNOWN = (
    ", and it is not known whom it waited for, as the job's store does not answer: see whether the "
    "process that serves it runs. Make a new process group"
)


class LibraryBackend(Backend):
    """A group over a library, whose ranks tell each other of failures by notes."""

    def __init__(self, rank: int, world_size: int, news: FailureNotifications) -> None:
        super().__init__(rank, world_size)
        self._news = news
        self._sequence = 0
        self._cause: FailureCause | None = None
        self._closed = False
        self._state = threading.Lock()
        self._turn = threading.RLock()  # so that threads begin one after the other, and callbacks
        self._look_every = max(_LOOK, _LOOK_PER_RANK * world_size)
        self._recorder: GroupRecorder | None = None
        self._name = ""
        self._job_ranks: Sequence[int] = ()

    def note_as(self, name: str, job_ranks: Sequence[int] = ()) -> None:
        self._name = name
        self._job_ranks = job_ranks
        self._recorder = GroupRecorder.of(name, self._world_size, str(self.type))

    def note_title(self, title: str) -> None:
        if self._recorder is not None:
            note_title(self._name, title)

    @property
    def job_ranks(self) -> Sequence[int]:
        return self._job_ranks

    @property
    def failed(self) -> bool:
        return self._cause is not None

    def abort(self) -> None:
        text = f"rank {self._rank} aborted the group. Destroy the process group and make a new one."
        self._end(FailureCause("CommAborted", (text,)))

    def close(self) -> None:
        with self._state:
            if self._closed:
                return
            self._closed = True
        try:
            self._flush()
        finally:
            self._news.leave(self._sequence)
            self._release()

    @abstractmethod
    def _halt(self) -> None:
        """Make the library give up after the group has failed, also on the peers if it can."""

    def _flush(self) -> None:
        """Get messages sent before on their way, if the library has to be called for that."""

    @abstractmethod
    def _release(self) -> None:
        """Give back what the library holds for the group, which may have failed."""

    def _check_usable(self) -> None:
        cause = self.ended()
        if cause is not None:
            raise cause.error()

    def _end(self, cause: FailureCause) -> FailureCause:
        """End the group after a failure; return the cause, which is what any rank noted first."""
        with self._state:
            if self._cause is not None:
                return self._cause
            told = self._news.report(cause)._replace(members=tuple(self._job_ranks))
            self._when_ended(told)
            self._cause = told
        self._halt()
        return told

    def _when_ended(self, cause: FailureCause) -> None:
        """Prepare for the failure of the group on this rank, which follows, with this cause."""

    def ended(self) -> FailureCause | None:
        """Return why no operation can be completed any more, or None if operations still can."""
        if self._cause is None and self._closed:
            return FailureCause("CommAborted", ("the process group is closed; make a new one",))
        return self._cause

    def look(self, call: Call) -> None:
        """Find out whether the others still come."""
        cause = self._news.look(call)
        if cause is not None:
            self._end(cause)

    def broke(self, call: Call, error: Exception) -> FailureCause:
        """End the group because the library has failed; name a peer if that is because it has
        ended.
        """
        limit = time.monotonic() + _CULPRIT
        while self.ended() is None and time.monotonic() < limit:
            self.look(call)  # a process takes a moment to end
            time.sleep(_CULPRIT / 20)
        text = f"{self.type} failed in {call.op} (operation {call.sequence} of the group): {error}"
        return self._end(FailureCause("CommError", (f"{text}. Make a new process group.",)))

    def late(self, call: Call, seconds: float) -> FailureCause:
        """End the group because the operation has passed its deadline."""
        self.look(call)
        time.sleep(_GRACE)  # peers whose deadlines pass at the same moment note where they wait
        missing = tuple(self._news.missing(call))
        detail = _busy_gpus(self._news.called(call))
        if not missing and self._news.is_silent:
            detail = _UNKNOWN
        facts = call.op, call.sequence, seconds, missing, detail
        return self._end(FailureCause("CommTimeout", facts))

    def missing(self, call: Call) -> list[int]:
        """Return the ranks that an operation seems to wait for."""
        return self._news.missing(call)

    @property
    def look_every(self) -> float:
        """Return the seconds between two reads of the other ranks' notes."""
        return self._look_every


def _busy_gpus(ranks: list[int]) -> str:
    """Return what CommTimeout says of ranks that have called an operation, but not come to it."""
    if not ranks:
        return ""
    names = ", ".join(map(str, ranks))
    return (
        f" (the GPU of rank(s) {names} has not come to it, though it was called there: work before "
        f"it has not ended)"
    )
