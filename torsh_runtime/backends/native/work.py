"""Operations of the native backend that are under way."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torsh_runtime.backends.base import Envelope
from torsh_runtime.backends.native.callbacks import Callbacks
from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.backends.work import Work, in_seconds
from torsh_runtime.errors import CommError, CommTimeout


class Caught:
    """A call whose error is kept."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error


class NativeWork(Work):
    """An operation that the group's own threads carry on."""

    def __init__(
        self, pending: _native.Pending, callbacks: Callbacks, caught: Caught | None = None
    ) -> None:
        """Wrap a pending operation. `caught` is the call that the operation is part of, if any."""
        self._pending = pending
        self._callbacks = callbacks
        self._caught = caught

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        seconds = in_seconds(timeout)
        if not self._pending.wait(seconds):
            assert seconds is not None
            raise CommTimeout(
                "Work.wait", 0, seconds, (), "; the operation is still under way, wait again"
            )
        if self._caught and self._caught.error:
            raise self._caught.error
        return True

    def done(self) -> bool:
        return self._pending.done()

    def exception(self) -> BaseException | None:
        if self._pending.done():
            try:
                self._pending.check()
            except CommError as error:
                return error
            return self._caught.error if self._caught else None
        return None

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        if self.done():
            callback(self)
        else:
            self._callbacks.when_over(self._pending, lambda: self._call(callback))

    def _call(self, callback: Callable[[Work], None]) -> None:
        try:
            self._pending.done()  # results of arrays that are not contiguous go where they belong
        finally:
            callback(self)

    @property
    def source(self) -> int | None:
        rank = self._pending.source()
        return None if rank == _native.ANY_SOURCE else rank

    @property
    def tag(self) -> int | None:
        message = self._pending.message()
        return _signed(message[1]) if message else None

    @property
    def content(self) -> Any:
        message = self._pending.message()
        return message[3] if message else None

    @property
    def envelope(self) -> Envelope | None:
        """Return the envelope of the message that came or was found; None before that."""
        message = self._pending.message()
        return Envelope(message[0], _signed(message[1]), message[2]) if message else None


def _signed(tag: int) -> int:
    """Return the tag as its sender gave it: messages carry 64 bits of it."""
    return tag - (1 << 64) if tag >> 63 else tag
