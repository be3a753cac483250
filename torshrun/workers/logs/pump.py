"""LogPump: the workers' output on its way to the agent's own, to files, or both."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torsh_runtime.contract import WorkerEnv
from torshrun.config.job import OutputConfig, Streams
from torshrun.safe_files import Folder
from torshrun.workers.logs import lines
from torshrun.workers.logs.files import LineFilter, LogFile
from torshrun.workers.logs.mover import Mover
from torshrun.workers.logs.sink import Sink, StatusLine
from torshrun.workers.logs.stream import Source, Stream, Tap

USUAL_COLUMNS = 80
"""Taken as the width of a terminal that does not say how wide it is."""


class _Channel(NamedTuple):
    """Carries all workers' stdout, all workers' stderr, or both in one."""

    which: Streams
    name: str
    mover: Mover
    needles: tuple[str, ...]
    """Texts that lines for filtered_<name>.log contain."""


class LogPump:
    """Moves the workers' output, in a thread for each of `stdout` and `stderr`, or in one if they
    are the same file, so that a reader who does not read stalls the workers and never the agent.

    Lines of different workers are never mixed. A worker's stdout and stderr are one stream where
    both are shown on the same file and nothing asks for one of them alone: only so the order in
    which it wrote is kept. Every method returns at once, and all but say() and write() belong to
    one thread.
    """

    def __init__(
        self,
        output: OutputConfig,
        folder: Folder | None,
        stdout: int = 1,
        stderr: int = 2,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Create the pump.

        `folder` is where all files go; it may be None unless needs_folder(output).
        """
        self._output = output
        self._folder = folder
        self._environ = environ
        self._hostname = os.uname().nodename
        self._unsaid: deque[bytes] = deque()
        self._shared: dict[str, LogFile] = {}
        err = Mover("torsh-stderr", Sink("stderr", stderr, self._complain))
        one = os.path.sameopenfile(stdout, stderr)
        out = err if one else Mover("torsh-stdout", Sink("stdout", stdout, self._complain))
        self._movers = [err] if one else [err, out]
        self._hidden: Mover | None = None  # for streams that no sink shows
        self._status = self._choose_status(err, out)
        self._out = _Channel(Streams.STDOUT, "stdout", out, output.duplicate_stdout_filters)
        self._err = _Channel(Streams.STDERR, "stderr", err, output.duplicate_stderr_filters)
        self._both = _Channel(Streams.BOTH, "stderr", err, ()) if one else None

    @property
    def is_one(self) -> bool:
        """Return whether stdout and stderr are the same file: a terminal, or 2>&1."""
        return self._both is not None

    @property
    def moved(self) -> int:
        """Return how many bytes have been moved so far.

        If some are left and the number does not grow, a reader stalls.
        """
        return sum(mover.moved for mover in self._movers)

    @property
    def stalled(self) -> bool:
        """Return whether a reader or a disk holds up the output at the moment."""
        return any(mover.stalled for mover in self._movers)

    @property
    def received(self) -> int:
        """Return how many bytes all workers have ever written."""
        return sum(mover.received for mover in self._movers)

    @property
    def lost(self) -> Mapping[str, str]:
        """Return which of stdout and stderr cannot be written any more, and why, by name."""
        sinks = [mover.sink for mover in self._movers]
        return {sink.name: sink.lost for sink in sinks if sink.lost}

    def open(self, place: WorkerEnv, folder: str) -> tuple[Stream, ...]:
        """Make a worker's stdout and stderr, or the one stream for both, whose ends to write to are
        the caller's to close. What is kept goes to `folder`, which is made then, as stdout.log and
        stderr.log, and chosen lines to filtered_*.log one directory up. OSError when a file cannot
        be opened.
        """
        channels = self._channels(place)
        with contextlib.ExitStack() as undo:
            made = tuple(self._make(channel, place, folder, undo) for channel in channels)
            undo.pop_all()
        for channel, stream in zip(channels, made, strict=True):
            if not stream.printer and self._hidden is None:
                self._hidden = Mover("torsh-files", Sink("nowhere", -1, self._complain))
                self._movers.append(self._hidden)
            mover = channel.mover if stream.printer else self._hidden
            assert mover
            mover.request(mover.take, stream)
        return made

    def open_shown(self, prefix: str) -> tuple[Stream, ...]:
        """Open streams as open() does, but only show them, with `prefix` before each line."""
        channels = (self._both,) if self._both else (self._out, self._err)
        return tuple(self._shown(channel, prefix) for channel in channels)

    def say(self, text: str) -> None:
        """Write lines of the agent's own to stderr, after what has been read so far."""
        self._unsaid.append(lines.encode(text if text.endswith("\n") else f"{text}\n"))
        self._err.mover.request(self._say)

    def write(self, data: bytes) -> None:
        """Write whole lines of the agent's own to stdout, among those of the workers."""
        self._out.mover.request(self._out.mover.sink.write_line, data)

    def set_status(self, text: str) -> None:
        """Show this line, which may have colours, below the log; "" removes it."""
        if self._status and (line := self._status.sink.status):
            self._status.request(line.set, lines.encode(" ".join(text.splitlines())))

    @property
    def status_width(self) -> int:
        """Return how many columns the status line's terminal has; 0 if there is no status line."""
        if self._status is None:
            return 0
        with contextlib.suppress(OSError):
            return os.get_terminal_size(self._status.sink.fd).columns or USUAL_COLUMNS
        return USUAL_COLUMNS

    def resize(self) -> None:
        for mover in self._movers:
            mover.request(mover.resize)

    async def finish(
        self, begin: Callable[[Callable[[], None]], None], stall: Callable[[], float]
    ) -> bool:
        """Begin drain() or close() and wait for its end; False if nothing moves for `stall()` s."""
        over, moved, last_move, pause = threading.Event(), -1, time.monotonic(), 0.0002
        begin(over.set)
        while not over.is_set():
            if self.moved != moved:
                moved, last_move = self.moved, time.monotonic()
            elif time.monotonic() - last_move > stall():
                return False
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.01)
        return True

    def drain(self, streams: Iterable[Stream], done: Callable[[], None]) -> None:
        """Read what is left in these streams, whose writers have ended; call `done` in a thread."""
        wanted = tuple(streams)
        for mover in self._movers:
            done = partial(mover.request, mover.drain, wanted, done)
        done()

    def close(self, done: Callable[[], None] = lambda: None) -> None:
        """Let go of everything when all requests so far are done; `done` as with drain()."""
        self.set_status("")
        last, *others = self._movers  # the others may have something to complain about until then
        done = partial(last.request, last.stop, done)
        for mover in others:
            done = partial(mover.request, mover.stop, done)
        done()

    def is_closed(self, wait: float) -> bool:
        """Return whether all threads have ended, after waiting `wait` seconds at most."""
        deadline = time.monotonic() + wait
        return all(
            mover.is_stopped(max(0.0, deadline - time.monotonic())) for mover in self._movers
        )

    def give_up(self) -> None:
        """Say what is unsaid, as far as stderr takes it. Only if threads stall at the end."""
        for data in tuple(self._unsaid):
            self._err.mover.sink.write_now(data)

    def _shown(self, channel: _Channel, prefix: str) -> Stream:
        printer = lines.Printer(channel.mover.sink, lines.encode(prefix))
        stream = Stream(Source(), (printer,), printer, None, None)
        channel.mover.request(channel.mover.take, stream)
        return stream

    def _choose_status(self, *movers: Mover) -> Mover | None:
        """Return the mover that shows the status line below the log; None if none does."""
        if self._output.status_line == "never" or self._environ.get("TERM") == "dumb":
            return None
        chosen = next((mover for mover in movers if mover.sink.is_terminal), None)
        if chosen:
            chosen.sink.status = StatusLine()
        return chosen

    def _channels(self, place: WorkerEnv) -> tuple[_Channel, ...]:
        output = self._output
        filtered = output.duplicate_stdout_filters or output.duplicate_stderr_filters
        alike = output.shown(place) == Streams.BOTH and not output.kept(place) and not filtered
        return (self._both,) if self._both and alike else (self._out, self._err)

    def _make(
        self, channel: _Channel, place: WorkerEnv, folder: str, undo: contextlib.ExitStack
    ) -> Stream:
        taps: tuple[Tap, ...] = ()
        output, sink = self._output, channel.mover.sink
        text = lines.render(output, place, self._hostname)
        prefix = lines.encode(text)
        if channel.which in output.kept(place):
            assert self._folder
            path = f"{folder}/{channel.name}.log"
            file = LogFile(self._folder, path, output.log_rotate, self._complain)
            undo.callback(file.close)
            taps = (file,)
        if needles := tuple(map(lines.encode, channel.needles)):
            taps = (*taps, LineFilter(needles, prefix, self._filtered(channel.name, folder)))
        is_shown, timed = channel.which in output.shown(place), output.log_timestamps
        width = len(text) + (lines.STAMP_WIDTH if timed else 0)
        source = Source(sink.fd, width) if is_shown else Source()
        undo.callback(os.close, source.fd)
        undo.callback(os.close, source.end)
        if lines.is_coloured(output, sink.is_terminal, self._environ):
            prefix = lines.paint(prefix, place.rank)
        printer = lines.Printer(sink, prefix) if is_shown else None
        taps = (*taps, printer) if printer else taps
        tail = b"" if channel.which & Streams.STDERR else None
        return Stream(source, taps, printer, time.time if timed else None, tail)

    def _filtered(self, name: str, folder: str) -> LogFile:
        path = str(Path(folder).parent / f"filtered_{name}.log")
        file = self._shared.get(name)
        if file is None or file.path != path:  # a new attempt
            assert self._folder
            limit = self._output.log_rotate
            file = LogFile(self._folder, path, limit, self._complain, shared=True)
            self._shared[name] = file
        return file

    def _complain(self, text: str) -> None:
        self.say(f"torshrun: error: {text}")

    def _say(self) -> None:
        self._err.mover.sink.write_line(self._unsaid[0])
        self._unsaid.popleft()
