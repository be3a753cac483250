"""Provides values that are set later, with callbacks, as torch.futures.Future."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torsh_runtime.backends.work import Work

Callback = Callable[["Future"], Any]
_log = logging.getLogger("torsh_runtime")


class _AroundWaits(threading.local):
    by: AbstractContextManager[object] = nullcontext()


around_waits = _AroundWaits()
"""A hook around waits for a future: threads of a pool tell the pool that they are blocked."""


class Future:
    """Holds a value that set_result() or set_exception() sets once, from any thread.

    No thread belongs to it: callbacks run on the thread that completes it, or at once on the
    caller's if it is complete.

    Example:
        ```python
        future = tr.Future()
        doubled = future.then(lambda done: 2 * done.value())
        future.set_result(21)
        doubled.wait()  # 42
        ```
    """

    def __init__(self) -> None:
        self._is_complete = False
        self._over: threading.Event | None = None
        """None while no thread waits."""
        self._lock = threading.Lock()
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callback] = []

    def done(self) -> bool:
        """Return whether the future has its value or an error."""
        return self._is_complete

    def wait(self, timeout: float | timedelta | None = None) -> Any:
        """Wait for the future and return its value.

        Args:
            timeout: Seconds or a timedelta; None waits without limit, as the one that completes the
                future has a deadline.

        Raises:
            TimeoutError: If `timeout` has passed.
            BaseException: The error that the future was completed with.

        Example:
            ```python
            value = tr.rpc.rpc_async("worker1", evaluate).wait(timeout=10)
            ```
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if not self._is_complete and not self._waited(seconds):
            raise TimeoutError(f"the future was not completed within {seconds:g} s; wait again")
        return self.value()

    def _waited(self, seconds: float | None) -> bool:
        with self._lock:
            if self._is_complete:
                return True
            self._over = over = self._over or threading.Event()
        is_endless = seconds is None or seconds > threading.TIMEOUT_MAX
        with around_waits.by:
            return over.wait(None if is_endless else seconds)

    def value(self) -> Any:
        """Return the value, without waiting.

        Raises:
            RuntimeError: If the future is not complete.
            BaseException: The error that the future was completed with.
        """
        if not self.done():
            raise RuntimeError("the future is not complete: wait() for it first")
        if self._error is not None:
            raise self._error
        return self._value

    def add_done_callback(self, callback: Callback) -> None:
        """Call `callback(self)` when it is complete.

        It is called on the thread that completes the future, or at once if it is complete. What it
        raises is logged.

        Args:
            callback: The function.

        Example:
            ```python
            future = tr.rpc.rpc_async("worker1", evaluate)
            future.add_done_callback(lambda done: print(done.value()))
            ```
        """
        with self._lock:
            if not self._is_complete:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def then(self, callback: Callback) -> Future:
        """Return a future of what `callback(self)` returns or raises once this one is complete.

        Args:
            callback: The function.

        Example:
            ```python
            future = tr.rpc.rpc_async("worker1", evaluate)
            doubled = future.then(lambda done: 2 * done.value())
            ```
        """
        chained = Future()
        self.add_done_callback(lambda _: chained.complete_by(callback, self))
        return chained

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the value in a coroutine, without blocking its event loop, and return it."""
        import asyncio  # programs that await have it

        if not self.done():
            loop = asyncio.get_running_loop()
            over = loop.create_future()

            def wake() -> None:
                if not over.done():
                    over.set_result(None)

            def tell(_: Future) -> None:
                with suppress(RuntimeError):  # the loop has been closed
                    loop.call_soon_threadsafe(wake)

            self.add_done_callback(tell)
            yield from over
        return self.value()

    def set_result(self, value: Any) -> None:
        """Complete the future with a value.

        Raises:
            RuntimeError: If it is complete already.
        """
        self._complete(value, None)

    def set_exception(self, error: BaseException) -> None:
        """Complete the future with `error`, which wait() and value() then raise.

        Raises:
            RuntimeError: If it is complete already.

        Example:
            ```python
            future = tr.Future()
            future.set_exception(ValueError("no data"))
            future.wait()  # raises ValueError
            ```
        """
        self._complete(None, error)

    def complete_by(self, callback: Callback, of: Future) -> None:
        """Complete the future with what `callback(of)` returns or raises.

        Args:
            callback: The function.
            of: The future that is its argument.
        """
        try:
            value = callback(of)
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(value)

    def _complete(self, value: Any, error: BaseException | None) -> None:
        with self._lock:
            if self._is_complete:
                raise RuntimeError("the future is complete already")
            self._value, self._error = value, error
            self._is_complete = True
            if self._over is not None:
                self._over.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callback) -> None:
        try:
            callback(self)
        except BaseException:
            _log.exception("a callback of a future failed")


class WorkFuture(Future):
    """Represents the future of an operation: its value is the list of arrays with the result."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def done(self) -> bool:
        return self._work.done()

    def wait(self, timeout: float | timedelta | None = None) -> Any:
        self._work.wait(timeout)
        return self._work.result()

    def value(self) -> Any:
        return self._work.result()

    def add_done_callback(self, callback: Callback) -> None:
        self._work.add_done_callback(lambda _: self._call(callback))

    def _complete(self, value: Any, error: BaseException | None) -> None:
        raise RuntimeError("an operation completes its future itself")
