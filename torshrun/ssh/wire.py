"""Implements the host's end of the connection.

A thread moves the output, and notices signals and silence.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from queue import Empty, SimpleQueue

from torsh_runtime.framing import DamagedFrame
from torshrun.ssh import frames

PASSED_ON = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
"""Signals that the other side may send to this process."""
CHUNK = 65536
"""The most bytes of output in a frame."""
END_BOUND = 30.0
"""Seconds that the agent's end may take beyond the grace period of its workers."""


class Wire:
    """Connects ssh to this process, whose stdout and stderr it replaces.

    If nobody takes the output, it stalls as with any reader. When the connection has ended, or
    nothing has come for `silence` seconds, the agent is asked to end, and killed if it does not.
    """

    def __init__(self, silence: float) -> None:
        self._silence = silence
        self._inbox: SimpleQueue[tuple[bytes, bytes] | None] = SimpleQueue()
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._frames = frames.Frames()
        self._outgoing: deque[memoryview] = deque([memoryview(frames.MARK)])
        self._source, self._sink, self._complaints = os.dup(0), os.dup(1), os.dup(2)
        self._streams = {_become_pipe(1): frames.STDOUT, _become_pipe(2): frames.STDERR}
        _become_null(0)
        for fd in (self._source, self._sink, *self._streams):
            os.set_blocking(fd, False)
        self.moved = 0
        """The number of bytes that the other side has taken."""
        self._stop_signal: int = signal.SIGTERM
        self._grace: float | None = None
        self._lost = False
        self._running = True
        self._heard = self._beaten = time.monotonic()
        self._kill_at = float("inf")
        self._thread = threading.Thread(target=self._run, name="torsh-ssh", daemon=True)
        with _signals_blocked():  # signals go to the main thread
            self._thread.start()

    def receive(self, timeout: float) -> tuple[bytes, bytes] | None:
        """Return the next message, or None if the connection has ended or nothing comes in time."""
        with contextlib.suppress(Empty):
            return self._inbox.get(timeout=timeout)
        return None

    def send(self, data: bytes) -> None:
        """Send these frames before output that has not been read yet."""
        self._request(data)

    def guard(self, grace: float, stop_signal: int) -> bool:
        """Treat the process as an agent from now on.

        It ends by `stop_signal`, and its workers may take `grace` seconds for it. Returns False if
        the connection has ended already.
        """
        self._stop_signal = stop_signal
        self._grace = grace
        return not self._lost

    def finish(self, last: bytes, stall: float) -> None:
        """Send all remaining output, then `last`.

        Gives up when nothing moves for `stall` seconds.
        """
        self._request(last)
        self._request(None)
        moved, since = self.moved, time.monotonic()
        while self._thread.is_alive() and time.monotonic() - since < stall:
            self._thread.join(0.05)
            if self.moved != moved:
                moved, since = self.moved, time.monotonic()

    def _request(self, data: bytes | None) -> None:
        self._requests.put(data)
        os.eventfd_write(self._wake, 1)

    # ---- the thread

    def _run(self) -> None:
        try:
            while self._running or (self._outgoing and not self._lost):
                self._step()
        except BaseException:  # a bug: nothing would watch the connection any more
            with contextlib.suppress(OSError):
                os.write(self._complaints, traceback.format_exc().encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def _step(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if not self._lost:
            poll.register(self._source, select.POLLIN)
        if self._outgoing:
            poll.register(self._sink, select.POLLOUT)
        else:
            for fd in self._streams:
                poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(max(0.0, self._next_deadline() - time.monotonic()) * 1000):
            self._handle(fd)
        self._look_at_the_clock()

    def _handle(self, fd: int) -> None:
        if fd == self._wake:
            os.eventfd_read(fd)
            self._take_requests()
        elif fd == self._source:
            self._hear()
        elif fd == self._sink:
            self._write()
        else:
            self._take_output(fd)

    def _hear(self) -> None:
        try:
            data = os.read(self._source, CHUNK)
            messages = list(self._frames.feed(data))
        except BlockingIOError:
            return
        except (OSError, DamagedFrame):  # nothing intelligible comes after that
            data, messages = b"", []
        if not data:
            self._lose()
            return
        self._heard = time.monotonic()
        for kind, content in messages:
            if kind == frames.SIGNAL:
                self._pass_on(content)
            elif kind != frames.BEAT:
                self._inbox.put((kind, content))

    def _pass_on(self, content: bytes) -> None:
        if len(content) == 1 and content[0] in PASSED_ON:
            os.kill(os.getpid(), content[0])

    def _write(self) -> None:
        if not self._outgoing:  # the connection was lost just before
            return
        try:
            count = os.write(self._sink, self._outgoing[0])
        except BlockingIOError:
            return
        except OSError:
            self._lose()
            return
        self.moved += count
        first = self._outgoing.popleft()[count:]
        if first:
            self._outgoing.appendleft(first)

    def _take_output(self, fd: int) -> bool:
        """Read once, and return whether there may be more."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            del self._streams[fd]
            os.close(fd)
        elif not self._lost:
            self._queue(frames.frame(self._streams[fd], data))
        return bool(data)

    def _take_requests(self) -> None:
        while not self._requests.empty():
            data = self._requests.get()
            if data is None:
                self._running = False
                return
            if data[:1] == frames.EXIT:
                self._drain()
            self._queue(data)

    def _drain(self) -> None:
        """Read what is in the pipes when the agent has ended.

        Not until their end, as other processes may hold them.
        """
        for fd in list(self._streams):
            for _ in range(64):  # more than a pipe takes
                if not self._take_output(fd):
                    break

    def _queue(self, data: bytes) -> None:
        if not self._lost:
            self._outgoing.append(memoryview(data))

    # ---- time

    def _next_deadline(self) -> float:
        if self._lost:
            return min(self._kill_at, time.monotonic() + 3600)
        return min(self._heard + self._silence, self._beaten + self._silence / 3)

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        if now >= self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)  # the keeper ends the workers
        if self._lost:
            return
        if now >= self._heard + self._silence:
            self._lose()
        elif now >= self._beaten + self._silence / 3:
            self._beaten = now
            if not self._outgoing:  # else there will be a sign of life anyway
                self._queue(frames.frame(frames.BEAT))

    def _lose(self) -> None:
        """Mark the connection as lost, and ask the agent to end."""
        if self._lost:
            return
        self._lost = True
        self._outgoing.clear()
        self._inbox.put(None)
        if self._grace is not None and self._running:
            self._kill_at = time.monotonic() + self._grace + END_BOUND
            os.kill(os.getpid(), self._stop_signal)


def _become_pipe(fd: int) -> int:
    """Replace the descriptor by the writing end of a new pipe. Returns the reading end."""
    reader, writer = os.pipe()
    os.dup2(writer, fd)
    os.close(writer)
    return reader


def _become_null(fd: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, fd)
    os.close(null)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
