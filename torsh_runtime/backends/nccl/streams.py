"""The CUDA stream of a group, its events, and captures of streams in graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib import import_module
from typing import Any

from torsh_runtime.backends.nccl.device import Framework, Operand, on_stream
from torsh_runtime.backends.nccl.library import Cuda, Event, Stream

_PRIORITY = -1
"""Above that of the streams on which programs compute, so that collectives do not wait for them."""
_EVENTS = 64
"""Events that are created at once."""


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
        self._here = cuda.Device(device)
        self.callers: dict[int, Stream] = {}
        self.threads = threading.local()
        """Has `has_context` in each thread that has made the device its current one here. Until
        then CUDA's driver knows of no context in a thread."""
        self.free: list[Event] = []
        """Events that nobody asks for, to be recorded."""
        self.arrival = self._here.create_event()
        """To be recorded on a caller's stream and waited for by this one, at once."""
        self.stream = self._created()
        self.handle = int(self.stream.handle)

    def _created(self) -> Stream:
        with suppress(ValueError):  # a device without priorities refuses this one
            return self._here.create_stream(options=self._cuda.StreamOptions(priority=_PRIORITY))
        return self._here.create_stream()

    def caller(self, handle: int) -> Stream:
        """Return a stream of the device by its handle."""
        if handle not in self.callers:
            self.callers[handle] = self._cuda.Stream.from_handle(handle)
        return self.callers[handle]

    def create_events(self) -> None:
        """Add events to those that are free. The device is current."""
        self.free += [self._here.create_event() for _ in range(_EVENTS)]

    def make_current(self) -> None:
        """Make the device and its context the calling thread's current ones."""
        self._here.set_current()
        self.threads.has_context = True

    @contextmanager
    def current(self, frameworks: Collection[Framework]) -> Iterator[set[int]]:
        """Make the device and its context current within the block.

        Yield the handles of the streams on which these libraries put the thread's work there.
        """
        with ExitStack() as stack:
            for framework in frameworks:
                stack.enter_context(framework.on_device(self._device))
            self.make_current()
            yield {framework.stream(self._device) for framework in frameworks}

    def taken(self, operands: Sequence[Operand]) -> AbstractContextManager[object]:
        """Return a context manager: in it the arrays' libraries work on this stream."""
        return on_stream(operands, self._device, self.handle)


class Captures:
    """Tells which streams are being captured in a CUDA graph, and asks events beside captures.

    While any stream is captured in the global mode, CUDA refuses queries of events in all threads
    whose own mode is global, too, and ends the capture.
    """

    def __init__(self) -> None:
        self._driver: Any = import_module("cuda.bindings.driver")
        self._relaxed = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self.status_of: Callable[[int], tuple[Any, Any]] = self._driver.cuStreamIsCapturing
        """Returns an error's number and the status of a stream by its handle. The default stream's
        is an error while another is captured."""
        self.none = self._driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        """The status of a stream that is not captured."""
        self.implicit = int(self._driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)

    def tolerate(self) -> None:
        """Let the calling thread query events from now on, whatever is captured elsewhere."""
        self._driver.cuThreadExchangeStreamCaptureMode(self._relaxed)

    @contextmanager
    def tolerated(self) -> Iterator[None]:
        """Let the calling thread query events within the block."""
        _, before = self._driver.cuThreadExchangeStreamCaptureMode(self._relaxed)
        try:
            yield
        finally:
            self._driver.cuThreadExchangeStreamCaptureMode(before)
