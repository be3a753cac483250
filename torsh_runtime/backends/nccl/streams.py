"""Operations on CUDA streams as steps, and the Work that makes streams wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta

from torsh_runtime.backends.library.coroutine_work import CoroutineWork
from torsh_runtime.backends.nccl.device import Operand, callers_streams, on_device, on_stream
from torsh_runtime.backends.nccl.library import Cuda, Event, Stream

_PAUSE = 0.0005
"""Seconds between two tests of an event by a thread that waits for it."""


class Launch:
    """Tells whether the work handed to NCCL is on its stream.

    It is not before the end of the block of operations that are launched together.
    """

    def __init__(self, launched: bool) -> None:
        self.launched = launched

    def test(self) -> bool:
        return self.launched

    def rest(self, seconds: float, waited: float) -> None:
        time.sleep(min(seconds, _PAUSE))


class OwnStream:
    """Orders a group's stream after the callers' streams.

    Work put on it waits for the work that the callers' streams had by then. These wait for it
    only on request.
    """

    def __init__(self, cuda: Cuda, device: int) -> None:
        """Create a stream on the current device, whose number is `device`.

        `cuda` is cuda-core's module.
        """
        self._cuda = cuda
        self._device = device
        self._callers: dict[int, Stream] = {}
        self.stream = cuda.Device(device).create_stream()

    def follow(self, operands: Sequence[Operand]) -> None:
        """Make further work wait for all work on the current streams of the arrays' libraries."""
        with self.current(operands):
            for handle in callers_streams(operands, self._device):
                self.stream.wait(self._caller(handle).record())

    def lead(self, operands: Sequence[Operand], event: Event) -> None:
        """Make further work on those current streams wait for the event."""
        with self.current(operands):
            for handle in callers_streams(operands, self._device):
                self._caller(handle).wait(event)

    def _caller(self, handle: int) -> Stream:
        if handle not in self._callers:
            self._callers[handle] = self._cuda.Stream.from_handle(handle)
        return self._callers[handle]

    def record(self, operands: Sequence[Operand]) -> Event:
        """Return an event behind everything that the stream has been given so far."""
        with self.current(operands):
            return self.stream.record()

    @contextmanager
    def current(self, operands: Sequence[Operand]) -> Iterator[None]:
        """Make the device and its context current within the block.

        Events need that: they are created in the current context.
        """
        with on_device(operands, self._device):
            self._cuda.Device(self._device).set_current()
            yield

    def taken(self, operands: Sequence[Operand]) -> AbstractContextManager[object]:
        """Return a context manager: in it the arrays' libraries work on this stream."""
        return on_stream(operands, self._device, int(self.stream.handle))


class Recorded:
    """An event behind everything that the group's stream has been given so far."""

    def __init__(
        self, own: OwnStream, operands: Sequence[Operand], check: Callable[[], None]
    ) -> None:
        self._own = own
        self._operands = operands  # their memory is in use until then
        self._check = check
        self._event = own.record(operands)

    def test(self) -> bool:
        done = self._event.is_done
        self._check()  # after it: a stream goes on when NCCL has given up
        return done

    def rest(self, seconds: float, waited: float) -> None:
        time.sleep(min(seconds, _PAUSE))

    def hold_back_current_stream(self) -> None:
        """Make further work on the current stream wait for the event."""
        self._own.lead(self._operands, self._event)


class StreamWork(CoroutineWork):
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
