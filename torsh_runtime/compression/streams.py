"""Runs compressors on CUDA streams of their own, beside the backward pass."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

from torsh_runtime.backends.work import Work, in_seconds
from torsh_runtime.errors import CommTimeout

_PAUSE = 0.0005
"""Seconds between two questions whether a GPU is done."""


def as_tensor(values: object) -> Any:
    """Return the values if they are a torch tensor; None otherwise. torch is not loaded here."""
    torch: Any = sys.modules.get("torch")
    return values if torch is not None and isinstance(values, torch.Tensor) else None


class SideStreams:
    """Has a stream for each GPU that it is asked for."""

    def __init__(self) -> None:
        self._streams: dict[Any, Any] = {}

    def run(self, call: Callable[[], None], tensor: Any) -> Work:
        """Call what works with the tensor, on a stream behind what the current one has got so far.

        Return the Work by which a stream waits for it.
        """
        cuda = import_module("torch").cuda
        device = tensor.device
        if device not in self._streams:
            self._streams[device] = cuda.Stream(device)
        stream = self._streams[device]
        stream.wait_stream(cuda.current_stream(device))
        tensor.record_stream(stream)  # it may be freed before anybody waits, or after an error
        with cuda.stream(stream):
            call()
        return StreamedWork(cuda, stream.record_event(), device)


class StreamedWork(Work):
    """Represents what a stream has got up to an event. `wait()` makes the current stream wait."""

    def __init__(self, cuda: Any, event: Any, device: Any) -> None:
        self._cuda = cuda
        self._event = event
        self._device = device

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        seconds = in_seconds(timeout)
        if seconds is None:
            self._cuda.current_stream(self._device).wait_event(self._event)
            return True
        limit = time.monotonic() + seconds
        while not self.done():
            if time.monotonic() >= limit:
                raise CommTimeout("compression", 0, seconds, [])
            time.sleep(_PAUSE)
        return True

    def done(self) -> bool:
        return bool(self._event.query())

    def exception(self) -> BaseException | None:
        return None

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        """Call it when the GPU is done, in a thread of its own."""

        def run() -> None:
            self._event.synchronize()
            callback(self)

        threading.Thread(target=run, name="torsh-compression", daemon=True).start()
