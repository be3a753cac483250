"""Begins operations that are steps, for backends that use a library of others."""

from __future__ import annotations

from typing import ClassVar

from torsh_runtime.backends.library.coroutine_work import CoroutineWork, Steps
from torsh_runtime.backends.library.failure_notifications import (
    Call,
    FailureCause,
    FailureNotifications,
)
from torsh_runtime.backends.library.library_backend import LibraryBackend
from torsh_runtime.backends.operation import Op
from torsh_runtime.backends.work import CompletedWork, Work
from torsh_runtime.errors import CommError


class StepwiseBackend(LibraryBackend):
    """A group whose operations are steps."""

    _work: ClassVar[type[CoroutineWork]] = CoroutineWork

    def __init__(self, rank: int, world_size: int, news: FailureNotifications) -> None:
        super().__init__(rank, world_size, news)
        self._under_way: set[CoroutineWork] = set()

    def _collective(self, op: Op, steps: Steps, timeout: float, async_op: bool) -> Work:
        self.get_on()
        with self._turn:
            call = Call(op.kind, self._sequence + 1)
            if self._recorder is not None:
                self._check_usable()
                call.noted = self._recorder.enter(op, call.sequence, async_op)
            work = self._begin_noted(call, steps, timeout)
            self._sequence = call.sequence
        return self._result(work, async_op)

    def _message(self, op: Op, steps: Steps, timeout: float, async_op: bool) -> Work:
        """Begin a message. Messages without an array are not recorded."""
        self.get_on()
        with self._turn:
            call = Call(op.kind, self._sequence, op.peer, True)
            if self._recorder is not None and op.measured is not None:
                self._check_usable()
                call.noted = self._recorder.enter_message(op, async_op)
            work = self._begin_noted(call, steps, timeout)
        return self._result(work, async_op)

    def get_on(self) -> None:
        """Advance all pending operations and release complete ones, whoever waits for them."""
        for earlier in tuple(self._under_way):
            earlier.done()

    def _begin_noted(self, call: Call, steps: Steps, timeout: float) -> Work:
        noted = call.noted
        if noted is None:
            return self._begin(call, steps, timeout)
        try:
            work = self._begin(call, steps, timeout)
        except BaseException:
            if self.failed:
                noted.leave(True)
            else:  # what is refused, as arguments are, has not begun
                noted.cancel()
            raise
        if not isinstance(work, CoroutineWork):
            noted.leave(False, work.source)
        return work

    def _begin(self, call: Call, steps: Steps, timeout: float) -> Work:
        self._check_usable()
        try:
            request = next(steps)
        except StopIteration as end:  # nothing to wait for
            return CompletedWork(end.value)
        except (RuntimeError, OSError) as error:
            raise self.broke(call, error).error() from error
        work = self._work(self, call, steps, request, timeout)
        self._under_way.add(work)  # the library uses its arrays whether or not anybody waits
        return work

    def _result(self, work: Work, async_op: bool) -> Work:
        if isinstance(work, CoroutineWork) and not async_op:
            self._finish(work)
        return work

    def _finish(self, work: CoroutineWork) -> None:
        try:
            work.wait()
        except CommError:
            raise
        except BaseException as error:  # Ctrl-C: the operation cannot be waited for again
            what = f"rank {self._rank} was interrupted in {work.call.op} ({type(error).__name__})"
            self._end(FailureCause("CommAborted", (f"{what}. Make a new process group.",)))
            work.done()
            raise

    def completed(self, work: CoroutineWork) -> None:
        self._under_way.discard(work)
