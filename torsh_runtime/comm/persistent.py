"""Describes operations once, to begin them again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from torsh_runtime.backends.work import Work
from torsh_runtime.comm.messages import irecv, isend, recv, send


class Persistent(Work):
    """Holds an operation and its arrays, and is the Work of its last start().

    persistent() creates it.

    Raises:
        RuntimeError: From all other methods before the first start().

    Example:
        ```python
        total = tr.persistent(tr.all_reduce, gradient)
        total.start()
        total.wait()
        ```
    """

    def __init__(self, begin: Callable[[], Work]) -> None:
        """Create it.

        Args:
            begin: A function that begins the operation and returns its Work.
        """
        self._begin = begin
        self._work: Work | None = None

    def start(self) -> Persistent:
        """Begin the operation with what its arrays hold now.

        The arrays are the operation's until it is done. It also raises what the operation's call
        raises.

        Returns:
            This object, to be waited for.

        Raises:
            RuntimeError: If the operation is still in progress.

        Example:
            ```python
            total = tr.persistent(tr.all_reduce, gradient)
            for batch in batches:
                gradient[:] = compute(batch)
                total.start().wait()
            ```
        """
        if self._work is not None and not self._work.done():
            raise RuntimeError("the operation is still under way: wait() before starting it again")
        self._work = self._begin()
        return self

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Wait for the last start(), and return True.

        Args:
            timeout: Seconds or a timedelta; None waits as long as the operation's own timeout lets
                it run.

        Raises:
            CommError: If the operation failed: that error.
            CommTimeout: If `timeout` has passed. The operation is then still in progress.
            RuntimeError: Before the first start().
        """
        return self._started().wait(timeout)

    def done(self) -> bool:
        """Return whether the last start() is over.

        Raises:
            RuntimeError: Before the first start().
        """
        return self._started().done()

    def exception(self) -> BaseException | None:
        """Return the error that the last start() ended with, or None.

        Raises:
            RuntimeError: Before the first start().
        """
        return self._started().exception()

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        """Call `callback(self)` when the last start() is over.

        Args:
            callback: The function.

        Raises:
            RuntimeError: Before the first start().
        """
        self._started().add_done_callback(lambda _: callback(self))

    def result(self) -> list[object]:
        """Return the arrays that hold the result of the last start().

        Raises:
            CommError: If the operation failed: that error.
            RuntimeError: While the operation is in progress, or before the first start().
        """
        return self._started().result()

    @property
    def source(self) -> int | None:
        """Return the rank that the message of the last start() came from, or None.

        Raises:
            RuntimeError: Before the first start().
        """
        return self._started().source

    def _started(self) -> Work:
        if self._work is None:
            raise RuntimeError("the operation was not started: call start() first")
        return self._work


def persistent(operation: Callable[..., Any], *arguments: Any, **named: Any) -> Persistent:
    """Describe an operation and its arguments, to be begun with start().

    Args:
        operation: isend, irecv, or a function of this package that takes async_op, which is not
            given.
        *arguments: The operation's arguments.
        **named: The operation's arguments by name.

    Returns:
        The operation, which has not begun.

    Raises:
        ValueError: For send and recv, which wait.

    Example:
        ```python
        exchange = [tr.persistent(tr.irecv, halo, left), tr.persistent(tr.isend, edge, right)]
        for step in range(steps):
            tr.start_all(exchange)
            tr.waitall(exchange)
        ```
    """
    if operation in (send, recv):
        raise ValueError(f"{operation.__name__} waits for its end: give i{operation.__name__}")
    if operation not in (isend, irecv):
        named["async_op"] = True
    return Persistent(partial(operation, *arguments, **named))


def start_all(requests: Sequence[Persistent]) -> None:
    """Start each of the operations, in their order.

    Args:
        requests: What persistent() returned.

    Raises:
        RuntimeError: If one is still in progress; those before it have begun.

    Example:
        ```python
        sums = [tr.persistent(tr.all_reduce, array) for array in arrays]
        tr.start_all(sums)
        tr.waitall(sums)
        ```
    """
    for request in requests:
        request.start()
