"""The result of a collective, which may still be under way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta


class Work(ABC):
    """A collective that was started; `wait` before using its buffers."""

    @abstractmethod
    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until it is complete, at most `timeout`, in seconds or a timedelta (None: as long
        as the operation's own timeout lets it run).

        True when it is complete. Raises the CommError it ended with, or CommTimeout when
        `timeout` has passed: the operation is then still under way.
        """

    @abstractmethod
    def done(self) -> bool:
        """Whether it is over, well or not."""

    @abstractmethod
    def exception(self) -> BaseException | None:
        """What it ended with; None while it is under way or if it went well."""

    @abstractmethod
    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        """Call `callback(self)` when it is over, on some thread, or at once if it already is."""

    @property
    def source(self) -> int | None:
        """The rank a received message came from; None of other operations, and before it came."""
        return None


class CompletedWork(Work):
    """Work that was over when the call returned."""

    def __init__(self, source: int | None = None) -> None:
        self._source = source

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


def in_seconds(timeout: float | timedelta | None) -> float | None:
    """The timeout of a wait as a number."""
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
