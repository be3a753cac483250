"""Operations on CUDA streams as steps, and the Work that makes streams wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torsh_runtime.backends.device import Operand
from torsh_runtime.backends.steps import StepWork

_PAUSE = 0.0005
"""Seconds between two tests of an event by who waits for it on the processor."""


class Launch:
    """Whether what has been handed to NCCL is on its stream: not before the end of the block of
    operations that go together.
    """

    def __init__(self, launched: bool) -> None:
        self.launched = launched
        self._thread = threading.get_ident()  # whose current stream is meant

    def test(self) -> bool:
        return self.launched and threading.get_ident() == self._thread

    def rest(self, seconds: float, waited: float) -> None:
        time.sleep(min(seconds, _PAUSE))


class Recorded:
    """An event behind everything that the stream has been given so far."""

    def __init__(
        self, cuda: Any, stream: int, operands: Sequence[Operand], check: Callable[[], None]
    ) -> None:
        self._cuda = cuda
        self._stream = stream
        self._operands = operands  # their memory is in use until then
        self._check = check
        self._event = cuda.Stream.from_handle(stream).record()

    def test(self) -> bool:
        self._check()
        return bool(self._event.is_done)

    def rest(self, seconds: float, waited: float) -> None:
        time.sleep(min(seconds, _PAUSE))

    def hold_back_current_stream(self) -> None:
        """What the current stream gets from now on waits for the event."""
        current = self._operands[0].stream
        if current != self._stream:
            self._cuda.Stream.from_handle(current).wait(self._event)


class StreamWork(StepWork):
    """An operation on a stream. `wait()` makes the current stream wait; `wait(timeout)`, and that
    of a barrier, the processor. Callbacks are called by the thread that watches.
    """

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        if timeout is not None or self.call.op == "barrier":
            return super().wait(timeout)
        with self._lock:
            if not self._over and isinstance(self._request, Recorded):
                self._request.hold_back_current_stream()
                return True
            if not self._over:
                raise RuntimeError("the operation is launched when its block ends; wait after that")
        return super().wait()
