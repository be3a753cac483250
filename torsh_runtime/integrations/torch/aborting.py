"""Tells a program of the end of a process group: hooks, and the kind of its error."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.intercepting import Intercepting
from torsh_runtime.backends.operation import Op, Reduce
from torsh_runtime.backends.reconfiguration import Refusing
from torsh_runtime.backends.work import Work
from torsh_runtime.errors import CommError, CommTimeout, PeerLost

Hook = Callable[[], None]
SUCCESS, TIMEOUT, COMM_ERROR, REMOTE_ERROR = "SUCCESS", "TIMEOUT", "COMM_ERROR", "REMOTE_ERROR"
"""Names of torch's ErrorType."""
_AT_ONCE = 0.001
_log = logging.getLogger("torsh_runtime")


class AbortHooks:
    """Holds functions that are called when a group ends, once in the life of each of its backends.

    They are called before this process aborts the group, or by the thread that finds that an
    operation has failed. What they raise is logged.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hooks: dict[int, Hook] = {}
        self._has_run = False

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._hooks)

    def add(self, number: int, hook: Hook) -> None:
        """Add a function, in the place of an earlier one of this number."""
        with self._lock:
            self._hooks[number] = hook

    def remove(self, number: int) -> None:
        """Remove the function of this number, if there is one."""
        with self._lock:
            self._hooks.pop(number, None)

    def arm(self) -> None:
        """Let them be called again, as the group has another backend."""
        with self._lock:
            self._has_run = False

    def run(self) -> None:
        """Call them, unless they have been called for this backend."""
        with self._lock:
            hooks = [] if self._has_run else list(self._hooks.values())
            self._has_run = True
        for hook in hooks:
            try:
                hook()
            except Exception:  # the group's end must go on
                _log.exception("an abort hook of a process group has failed")


class _Hooked(Intercepting):
    """Calls hooks when the backend has failed."""

    def __init__(self, backend: Backend, hooks: AbortHooks) -> None:
        super().__init__(backend)
        self._hooks = hooks

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        with self._watching():
            return self._followed([op.begin(self._backend, timeout, async_op)])[0]

    def all_reduce_coalesced(
        self, arrays: Sequence[object], op: Reduce, timeout: float, async_op: bool = False
    ) -> list[Work]:
        with self._watching():
            return self._followed(super().all_reduce_coalesced(arrays, op, timeout, async_op))

    @contextmanager
    def _watching(self) -> Iterator[None]:
        try:
            yield
        except CommError:
            self._look()
            raise

    def _followed(self, works: list[Work]) -> list[Work]:
        for work in works:
            work.add_done_callback(lambda _: self._look())
        return works

    def _look(self) -> None:
        if self.failed:
            self._hooks.run()


def hooked(backend: Backend, hooks: AbortHooks) -> Backend:
    """Return the backend, or what stands for it as long as there are hooks to call."""
    return _Hooked(backend, hooks) if hooks and not isinstance(backend, Refusing) else backend


def kind_of(error: BaseException) -> str:
    """Return the name of torch's ErrorType for an error."""
    match error:
        case CommTimeout():
            return TIMEOUT
        case PeerLost():
            return REMOTE_ERROR
    return COMM_ERROR


def failure_of(backend: Backend) -> CommError | None:
    """Return the error with which the backend's operations end, or None if it has not failed."""
    if not backend.failed:
        return None
    try:
        backend.barrier(_AT_ONCE)
    except CommError as error:
        return error
    return None
