"""Provides futures of the results of calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from torsh_runtime.backends.future import Future
from torsh_runtime.rpc.functions import name_of

if TYPE_CHECKING:
    from torsh_runtime.rpc.agent import Agent
    from torsh_runtime.rpc.directory import Worker


class Begun(NamedTuple):
    """A call that is under way."""

    call: Any
    """The compiled library's call."""
    worker: Worker
    function: Any
    """The called function, for errors."""
    began: float
    deadline: float


class CallFuture(Future):
    """The result of a call. It needs no thread of its own: a thread that waits for the result
    fetches it. Callbacks run on a serving thread."""

    def __init__(self, agent: Agent, begun: Begun, kept: object) -> None:
        """Create the future of a call. `kept` lives until the call is over."""
        super().__init__()
        self.kept = kept
        self._agent = agent
        self._begun = begun
        self._is_settled = self._is_announced = False

    def done(self) -> bool:
        return self._is_settled or bool(self._begun.call.is_over)

    def wait(self, timeout: float | timedelta | None = None) -> Any:
        """Wait for the call and return its result, or raise its error. Raises CallTimeout after the
        call's own deadline, PeerLost when the worker has gone, or TimeoutError after `timeout`,
        which leaves the call under way."""
        if not self._is_complete:
            if not self._begun.call.is_over:
                self._await_answer(timeout)
            self._settle()
        return super().value()

    def _await_answer(self, timeout: float | timedelta | None) -> None:
        until = self._begun.deadline
        if timeout is not None:
            limit = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
            until = min(until, time.monotonic() + limit)
        if not self._agent.wait(self._begun.call, until) and until < self._begun.deadline:
            raise TimeoutError(f"{name_of(self._begun.function)} has not answered yet; wait again")

    def value(self) -> Any:
        if not self._is_complete and self.done():
            self._settle()
        return super().value()

    def add_done_callback(self, callback: Callable[[Future], Any]) -> None:
        with self._lock:
            if not self._is_settled and not self._is_announced:
                self._is_announced = self._agent.announce(self._begun.call, self._settle)
            is_over = not self._is_announced
        if is_over:
            self._settle()
        super().add_done_callback(callback)

    def _settle(self) -> None:
        """Fetch the result of the call, which is over, and run the callbacks."""
        with self._lock:
            is_first, self._is_settled = not self._is_settled, True
        if not is_first:
            super().wait()  # for another thread that fetches it
            return
        value, error = None, None
        try:
            value = self._agent.outcome(self._begun)
        except Exception as raised:
            error = raised
        self.kept = None
        super()._complete(value, error)

    def set_result(self, value: Any) -> None:
        raise RuntimeError("a call completes its future itself")

    def set_exception(self, error: BaseException) -> None:
        raise RuntimeError("a call completes its future itself")


def wait_all(futures: Sequence[Future]) -> list[Any]:
    """Wait for all futures and return their values.

    Args:
        futures: The futures.

    Raises:
        Exception: The error of the first future, in their order, that has one.

    Example:
        ```python
        futures = [tr.rpc.rpc_async(worker, evaluate) for worker in workers]
        losses = tr.rpc.wait_all(futures)
        ```
    """
    return [future.wait() for future in futures]


def collect_all(futures: Sequence[Future]) -> Future:
    """Return a future of the list of these futures, which is complete when all of them are.

    Errors of the futures stay in these.

    Args:
        futures: The futures.

    Example:
        ```python
        both = tr.rpc.collect_all([first, second])
        total = both.then(lambda done: sum(each.value() for each in done.value()))
        ```
    """
    collected = Future()
    left = len(futures)
    lock = threading.Lock()

    def one_less(_: Future) -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = left == 0
        if is_last:
            collected.set_result(list(futures))

    if not futures:
        collected.set_result([])
    for future in futures:
        future.add_done_callback(one_less)
    return collected
