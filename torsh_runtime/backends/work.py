"""The result of a collective, which may still be under way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torsh_runtime.backends.future import Future, WorkFuture
from torsh_runtime.errors import CommError


class Work(ABC):
    """Represents an operation that was started; `wait` before using its buffers.

    It has the methods of torch.distributed's Work, too.

    Example:
        ```python
        work = tr.all_reduce(gradient, async_op=True)
        prepare_next_batch()
        work.wait()
        ```
    """

    _outputs: Sequence[object] = ()

    @abstractmethod
    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until the operation is complete, and return True.

        Args:
            timeout: Seconds or a timedelta; None waits as long as the operation's own timeout lets
                it run.

        Raises:
            CommError: If the operation failed: that error.
            CommTimeout: If `timeout` has passed. The operation is then still in progress.

        Example:
            ```python
            work = tr.all_reduce(gradient, async_op=True)
            work.wait(timeout=60)
            ```
        """

    @abstractmethod
    def done(self) -> bool:
        """Return whether the operation is over, successfully or not.

        Example:
            ```python
            work = tr.all_reduce(gradient, async_op=True)
            while not work.done():
                compute()
            work.wait()
            ```
        """

    @abstractmethod
    def exception(self) -> BaseException | None:
        """Return the error that the operation ended with.

        It is None while the operation is in progress or if it succeeded.

        Example:
            ```python
            work = tr.all_reduce(gradient, async_op=True)
            work.add_done_callback(lambda done: print(done.exception() or "reduced"))
            ```
        """

    @abstractmethod
    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        """Call `callback(self)` when the operation is over.

        That is on some thread, or at once if the operation is over already.

        Example:
            ```python
            work = tr.all_reduce(gradient, async_op=True)
            work.add_done_callback(lambda done: print("success:", done.is_success()))
            ```
        """

    @property
    def source(self) -> int | None:
        """Return the rank that a received message came from.

        Returns None for other operations, and before the message has come.
        """
        return None

    @property
    def tag(self) -> int | None:
        """Return the tag of a received message if the backend reports it, else None."""
        return None

    @property
    def content(self) -> Any:
        """Return the bytes that recv_object received, uint8 of shape (bytes,).

        Returns None for other operations, and before the bytes have come.
        """
        return None

    def is_completed(self) -> bool:
        """Return whether the operation is over, successfully or not."""
        return self.done()

    def is_success(self) -> bool:
        """Return whether the operation is over and succeeded."""
        return self.done() and self.exception() is None

    def result(self) -> list[object]:
        """Return the arrays that hold the result; the list is empty for operations without one.

        Raises:
            CommError: If the operation failed: that error.
            RuntimeError: If it is still in progress.

        Example:
            ```python
            work = tr.all_reduce(gradient, async_op=True)
            work.wait()
            work.result()[0] is gradient  # True
            ```
        """
        if not self.done():
            raise RuntimeError("the operation is still under way: wait() for it first")
        self.wait()
        return list(self._outputs)

    def get_future(self) -> Future:
        """Return a future of `result()`. No thread waits for it unless a callback is added.

        Example:
            ```python
            future = tr.all_reduce(loss, async_op=True).get_future()
            mean = future.then(lambda done: done.value()[0].mean())
            ```
        """
        return WorkFuture(self)

    def synchronize(self) -> None:
        """Wait for the operation, as wait() does.

        Raises:
            CommError: If the operation failed: that error.
        """
        self.wait()

    def block_current_stream(self) -> None:
        """Let the current stream wait for the operation; on CPUs, which have no streams, the
        caller.
        """
        self.wait()

    def source_rank(self) -> int:
        """Return `source`, or -1 if it is None."""
        return -1 if self.source is None else self.source

    def giving(self, outputs: Sequence[object]) -> Work:
        """Return this work, with `outputs` as the arrays that hold its result."""
        self._outputs = outputs
        return self


class CompletedWork(Work):
    """Represents an operation that was over when the call returned."""

    def __init__(self, source: int | None = None) -> None:
        self._source = source

    def giving(self, outputs: Sequence[object]) -> CompletedWork:
        work = CompletedWork(self._source)  # this one may be everybody's
        work._outputs = outputs
        return work

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        return True

    def done(self) -> bool:
        return True

    def exception(self) -> BaseException | None:
        return None

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        callback(self)

    @property
    def source(self) -> int | None:
        return self._source


COMPLETED = CompletedWork()


class FailedWork(CompletedWork):
    """Represents an operation that had failed when the call returned."""

    def __init__(self, error: CommError) -> None:
        super().__init__()
        self._error = error

    def giving(self, outputs: Sequence[object]) -> FailedWork:
        return self

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        raise self._error

    def exception(self) -> CommError:
        return self._error


def in_seconds(timeout: float | timedelta | None) -> float | None:
    """Return the timeout of a wait in seconds, or None for no limit."""
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
