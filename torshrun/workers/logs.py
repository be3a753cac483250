"""The workers' output on its way to the agent's own: prefixed, kept, and never torn.

One thread does all of it, so that a reader who does not read stalls the workers and never the
agent. Lines of different workers are never mixed; a line ends with a newline or carriage return.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue

CHUNK = 65536
"""Bytes read or written at once, and the longest line that is held back."""
PARTIAL_SECONDS = 0.2
"""How long an unfinished line is held back, not counting time in which a reader stalls."""
STALL_SECONDS = 0.05
"""Moving what is there takes longer than this only when a reader stalls."""
TAIL_BYTES = 16384
"""How much of a stream's end is kept for reports."""
_F_GETPIPE_SZ = 1032


def complain(text: str) -> None:
    """Say on stderr, if that is possible, that output is lost from here on."""
    with contextlib.suppress(OSError):
        os.write(2, f"torshrun: error: {text}; the rest is dropped\n".encode())


class Sink:
    """One of the agent's own outputs. Used by the pump's thread only."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        """The descriptor it writes to."""
        self._dead = False
        self.unfinished: Stream | None = None
        """The stream whose unfinished line stands at the end; None after a line's end."""
        self.last: Stream | None = None
        """The stream that wrote last."""
        self.written = 0
        """Bytes written, ever."""

    def write(self, data: bytes) -> None:
        """Write all of it, however long that takes. Does nothing once the reader is gone."""
        view = memoryview(data)
        while view and not self._dead:
            try:
                count = os.write(self.fd, view[:CHUNK])
            except BlockingIOError:
                select.select([], [self.fd], [])
            except OSError as error:
                self._dead = True
                if error.errno != errno.EPIPE:
                    complain(f"cannot write the workers' output ({error.strerror})")
            else:
                self.written += count
                view = view[count:]


class Stream:
    """One worker's stdout or stderr. Used by the pump's thread, but for tail()."""

    def __init__(self, fd: int, prefix: bytes, sink: Sink, file_fd: int) -> None:
        self.fd = fd
        self.since = 0.0
        """When the unfinished line in hand was begun, by the pump's clock."""
        self._prefix = prefix
        self._sink = sink
        self._file_fd = file_fd
        self._partial = b""
        self._tail = b""
        self._after_return = False

    @property
    def partial(self) -> bool:
        """Whether an unfinished line is held back."""
        return bool(self._partial)

    def tail(self) -> bytes:
        """The last TAIL_BYTES that were read."""
        return self._tail

    def feed(self, data: bytes, now: float) -> None:
        """Take what the worker wrote: pass on whole lines, hold back the rest."""
        self._keep(data)
        if self._partial:
            data = self._partial + data
        else:
            self.since = now
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._partial = data[cut:]
        if cut:
            self._emit(data[:cut])
            self.since = now
        if len(self._partial) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        """Pass on the unfinished line."""
        if self._partial:
            data, self._partial = self._partial, b""
            self._emit(data)

    def close(self) -> None:
        """Pass on what is held back and close the descriptors."""
        self.flush()
        os.close(self.fd)
        if self._file_fd >= 0:
            os.close(self._file_fd)

    def _keep(self, data: bytes) -> None:
        recent = data if len(data) >= TAIL_BYTES else self._tail + data
        self._tail = recent[-TAIL_BYTES:]
        try:
            view = memoryview(data)
            while view and self._file_fd >= 0:
                view = view[os.write(self._file_fd, view) :]
        except OSError as error:  # give the file up, not the worker
            complain(f"cannot keep {self._prefix.decode()}output ({error.strerror})")
            os.close(self._file_fd)
            self._file_fd = -1

    def _emit(self, data: bytes) -> None:
        sink = self._sink
        head = self._prefix
        if sink.unfinished is self:
            head = b""
        elif sink.unfinished is not None:
            head = b"\n" + self._prefix
        elif self._after_return and data.startswith(b"\n"):  # the other half of a \r\n
            if sink.last is self:
                sink.write(b"\n")
            data = data[1:]
        self._after_return = data.endswith(b"\r")
        if data:
            sink.write(head + insert_prefix(data, self._prefix))
            sink.last = self
            sink.unfinished = None if data.endswith((b"\n", b"\r")) else self


def insert_prefix(data: bytes, prefix: bytes) -> bytes:
    """`data` with the prefix after every line end inside it; not at the beginning or the end."""
    if b"\r" in data:
        data = data.replace(b"\r", b"\r" + prefix).replace(b"\r" + prefix + b"\n", b"\r\n")
    data = data.replace(b"\n", b"\n" + prefix)
    ended = data.endswith((b"\n" + prefix, b"\r" + prefix))
    return data[: len(data) - len(prefix)] if ended else data


class LogPump:
    """Moves the output of workers to the descriptors `stdout` and `stderr`, in a thread.

    Every method returns at once, but for close().
    """

    def __init__(self, stdout: int = 1, stderr: int = 2) -> None:
        self.stdout = Sink(stdout)
        one = os.path.sameopenfile(stdout, stderr)  # a terminal, or 2>&1
        self.stderr = self.stdout if one else Sink(stderr)
        self._epoll = select.epoll()
        self._streams: dict[int, Stream] = {}
        self._requests: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._unsaid: deque[bytes] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._running = True
        self._stalled = 0.0  # seconds, in all
        self._thread = threading.Thread(target=self._run, name="torsh-logs", daemon=True)
        self._thread.start()

    @property
    def moved(self) -> int:
        """Bytes written so far: standing still means that a reader stalls."""
        return sum(sink.written for sink in {self.stdout, self.stderr})

    def add(self, fd: int, prefix: str, sink: Sink, path: str = "") -> Stream:
        """Take over the reading end of a pipe. Its raw bytes are also added to the file `path`,
        if one is named; OSError when that cannot be opened.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        stream = Stream(fd, prefix.encode(), sink, os.open(path, flags, 0o666) if path else -1)
        os.set_blocking(fd, False)
        self._request(lambda: self._take(stream))
        return stream

    def _take(self, stream: Stream) -> None:
        self._streams[stream.fd] = stream
        self._epoll.register(stream.fd, select.EPOLLIN)

    def say(self, text: str) -> None:
        """Write lines of the agent's own to stderr, after what has been read so far."""
        line = text if text.endswith("\n") else text + "\n"
        try:
            data = os.fsencode(line)
        except UnicodeEncodeError:  # half a surrogate pair, from a worker's error file
            data = line.encode("utf-8", "backslashreplace")
        self._unsaid.append(data)
        self._request(self._say)

    def drain(self, streams: Iterable[Stream], done: Callable[[], None]) -> None:
        """Read what is left in these pipes and let go of them, then call `done` in the pump's
        thread. To be called when their writers have ended.
        """
        wanted = list(streams)
        self._request(lambda: self._drain(wanted, done))

    def close(self) -> None:
        """Let go of everything when all requests so far are done; is_closed() tells when."""
        self._request(self._stop)

    def is_closed(self, wait: float) -> bool:
        """Whether the thread has ended, after waiting `wait` seconds at most."""
        self._thread.join(wait)
        if self._thread.is_alive():
            return False
        if self._wake_read >= 0:  # not the thread's to close: a request may be about to write
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_read = -1
        return True

    def give_up(self) -> None:
        """Say what is still unsaid without the thread, as far as stderr takes it at once. Only
        when a reader of stdout stalls the thread, and the process ends.
        """
        for data in tuple(self._unsaid):
            if select.select([], [self.stderr.fd], [], 0)[1]:
                self.stderr.write(data)

    def _request(self, action: Callable[[], None]) -> None:
        self._requests.put(action)
        os.write(self._wake_write, b"\0")

    def _run(self) -> None:
        while self._running:
            ready = self._epoll.poll(self._wait_seconds())
            begun = time.monotonic()
            self._move(fd for fd, _ in ready)
            spent = time.monotonic() - begun
            if spent > STALL_SECONDS:
                self._stalled += spent
            self._flush_old()
            while not self._requests.empty():
                self._requests.get()()

    def _now(self) -> float:
        """The pump's clock stands still while a reader stalls: meanwhile workers, who stall too,
        cannot finish their lines.
        """
        return time.monotonic() - self._stalled

    def _move(self, ready: Iterable[int]) -> None:
        for fd in ready:
            if fd == self._wake_read:
                os.read(fd, CHUNK)
            elif fd in self._streams:
                self._read(self._streams[fd])

    def _read(self, stream: Stream) -> bool:
        """Read once; whether there may be more."""
        try:
            data = os.read(stream.fd, CHUNK)
        except BlockingIOError:
            return False
        if data:
            stream.feed(data, self._now())
        else:
            self._release(stream)
        return bool(data)

    def _release(self, stream: Stream) -> None:
        self._epoll.unregister(stream.fd)
        del self._streams[stream.fd]
        stream.close()

    def _wait_seconds(self) -> float | None:
        begun = [stream.since for stream in self._streams.values() if stream.partial]
        return max(0.0, min(begun) + PARTIAL_SECONDS - self._now()) if begun else None

    def _flush_old(self) -> None:
        horizon = self._now() - PARTIAL_SECONDS
        streams = self._streams.values()
        for stream in [stream for stream in streams if stream.partial and stream.since <= horizon]:
            if not self._read(stream):  # its rest may have come meanwhile
                stream.flush()

    def _say(self) -> None:
        data = self._unsaid[0]
        if self.stderr.unfinished is not None:
            data = b"\n" + data
        self.stderr.write(data)
        self.stderr.unfinished = self.stderr.last = None
        self._unsaid.popleft()

    def _drain(self, streams: list[Stream], done: Callable[[], None]) -> None:
        for stream in streams:
            if self._streams.get(stream.fd) is stream:
                self._finish(stream)
        done()

    def _finish(self, stream: Stream) -> None:
        capacity = fcntl.fcntl(stream.fd, _F_GETPIPE_SZ)
        for _ in range(capacity // CHUNK + 2):  # an outsider that holds the pipe may never stop
            if not self._read(stream):
                break
        if self._streams.get(stream.fd) is stream:
            self._release(stream)

    def _stop(self) -> None:
        for stream in list(self._streams.values()):
            self._finish(stream)
        self._running = False
        self._epoll.close()
