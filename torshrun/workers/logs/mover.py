"""The thread that moves output: it alone waits for whoever reads its sink."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

from torshrun.workers.logs.sink import Sink
from torshrun.workers.logs.stream import Stream

PARTIAL_SECONDS = 0.2
"""Seconds for which an unfinished line is held back, without the time in which a reader stalls."""
STALL_SECONDS = 0.05
"""Seconds after which the moving of available bytes is taken to be stalled by a reader."""


class Mover:
    """Reads the streams of one sink, or those that no sink shows, in a thread of its own. What can
    be read of it, request() and is_stopped() are for any thread; the rest is to be requested.
    """

    def __init__(self, name: str, sink: Sink) -> None:
        self.sink = sink
        self.received = 0
        """Bytes read so far."""
        self._epoll = select.epoll()
        self._streams: dict[int, Stream] = {}
        self._requests: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._running = True
        self._busy_since = 0.0
        self._stalled = 0.0  # seconds, in all
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def moved(self) -> int:
        """Return how many bytes have been read and written so far.

        If the number does not grow, there is nothing to move, or a reader stalls.
        """
        return self.received + self.sink.written

    @property
    def stalled(self) -> bool:
        """Return whether it has waited longer than usual for a reader or a disk."""
        since = self._busy_since
        return since > 0 and time.monotonic() - since > STALL_SECONDS

    def request(self, act: Callable[..., None], *arguments: object) -> None:
        """Have this done in the thread, after what is being done."""
        self._requests.put(partial(act, *arguments))
        if self._wake >= 0:  # not after the end
            os.eventfd_write(self._wake, 1)

    def is_stopped(self, wait: float) -> bool:
        """Return whether the thread has ended, after waiting `wait` seconds at most."""
        self._thread.join(wait)
        if self._thread.is_alive():
            return False
        if self._wake >= 0:  # not the thread's to close: a request may be about to write
            os.close(self._wake)
            self._wake = -1
        return True

    def take(self, stream: Stream) -> None:
        """Take over a stream, until its end or until it is drained."""
        self._streams[stream.source.fd] = stream
        self._epoll.register(stream.source.fd, select.EPOLLIN)

    def drain(self, streams: Sequence[Stream], done: Callable[[], None]) -> None:
        """Read what is left in those of the streams that are here, let go of them, call `done`."""
        for stream in streams:
            if self._streams.get(stream.source.fd) is stream:
                self._finish(stream)
        done()

    def resize(self) -> None:
        for stream in self._streams.values():
            stream.source.resize()
        self.sink.write(b"")  # erases the status line, which may have changed its row

    def stop(self, done: Callable[[], None]) -> None:
        """Release everything, then call `done`; the thread ends. is_stopped() reports when."""
        for stream in list(self._streams.values()):
            self._finish(stream)
        self._running = False
        self._epoll.close()
        done()

    def _run(self) -> None:
        wait = None
        while self._running:
            ready = self._epoll.poll(wait)
            begun = self._busy_since = time.monotonic()
            for fd, _ in ready:
                if fd == self._wake:
                    os.eventfd_read(fd)
                elif fd in self._streams:
                    self._read(self._streams[fd])
            spent = time.monotonic() - begun
            if spent > STALL_SECONDS:
                self._stalled += spent
            while not self._requests.empty():
                self._requests.get()()
            waits = (*self._flush_old(), self.sink.refresh())
            wait = min((each for each in waits if each is not None), default=None)
            self._busy_since = 0.0

    def _now(self) -> float:
        """Return a clock that stops while a reader stalls.

        Workers stall then, too, and cannot finish their lines.
        """
        return time.monotonic() - self._stalled

    def _read(self, stream: Stream) -> bool:
        """Read once; whether there may be more."""
        try:
            data = stream.source.read()
        except BlockingIOError:
            return False
        if data:
            self.received += len(data)
            stream.feed(data, self._now())
        else:
            self._release(stream)
        return bool(data)

    def _release(self, stream: Stream) -> None:
        self._epoll.unregister(stream.source.fd)
        del self._streams[stream.source.fd]
        stream.close()

    def _flush_old(self) -> list[float]:
        """Pass on unfinished lines that are old; in how many seconds the others will be."""
        waits = []
        horizon = self._now() - PARTIAL_SECONDS
        for stream in list(self._streams.values()):
            printer = stream.printer
            if printer is None or not printer.partial:
                continue
            if printer.since > horizon:
                waits.append(printer.since - horizon)
            elif self._read(stream):  # its rest has come meanwhile, or some of it
                waits.append(0.0)
            else:
                printer.close()
        return waits

    def _finish(self, stream: Stream) -> None:
        """Read what was there to begin with: an outsider that holds the stream may never stop."""
        limit = stream.received + stream.source.capacity()
        while stream.received < limit and self._read(stream):
            pass
        if self._streams.get(stream.source.fd) is stream:
            self._release(stream)
