"""LogPump: the workers' output on its way to the agent's own, to files, or both."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torsh_runtime.contract import WorkerEnv
from torshrun.config.job import OutputConfig
from torshrun.safe_files import Folder
from torshrun.workers.logs import prefix as prefixes
from torshrun.workers.logs.files import SharedFile, StreamFile
from torshrun.workers.logs.filters import LineFilter
from torshrun.workers.logs.lines import Printer
from torshrun.workers.logs.mover import Countdown, Mover
from torshrun.workers.logs.routes import Route, routes
from torshrun.workers.logs.sink import Sink
from torshrun.workers.logs.source import Pipe, open_source
from torshrun.workers.logs.status import StatusLine
from torshrun.workers.logs.stream import Stream, Tail, Tap

USUAL_COLUMNS = 80
"""Taken as the width of a terminal that does not say how wide it is."""


@dataclass(frozen=True, slots=True)
class Outlets:
    """What one worker writes to, and what is read from it."""

    stdout_fd: int
    """The writing end for the worker's stdout."""
    stderr_fd: int
    """The same for stderr."""
    streams: tuple[Stream, Stream]
    """Its stdout and its stderr."""
    tail: Tail
    """The end of its stderr."""

    def close_ends(self) -> None:
        """Close the writing ends here, when the worker has them or never will."""
        os.close(self.stdout_fd)
        os.close(self.stderr_fd)


@dataclass(frozen=True, slots=True)
class _Channel:
    """All workers' stdout, or all workers' stderr."""

    name: str
    sink: Sink
    mover: Mover
    needles: tuple[bytes, ...]
    """What lines for filtered_<name>.log contain."""


class LogPump:
    """Moves the workers' output, in a thread for each of `stdout` and `stderr`, or in one if they
    are the same file, so that a reader who does not read stalls the workers and never the agent.

    Lines of different streams are never mixed. Every method returns at once, and all but say() and
    write() belong to one thread.
    """

    def __init__(
        self,
        output: OutputConfig,
        folder: Folder | None,
        stdout: int = 1,
        stderr: int = 2,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """`folder` is where all files go; None will do unless needs_folder(output)."""
        self._output = output
        self._folder = folder
        self._environ = environ
        self._hostname = os.uname().nodename
        self._unsaid: deque[bytes] = deque()
        self._status = b""
        self._shared: dict[str, SharedFile] = {}
        self._hidden: Mover | None = None  # for streams that no sink shows
        err = Sink("stderr", stderr, self._complain)
        one = os.path.sameopenfile(stdout, stderr)  # a terminal, or 2>&1
        out = err if one else Sink("stdout", stdout, self._complain)
        self._status_sink = self._choose_status_sink(err, out)
        err_mover = Mover("torsh-stderr", err)
        out_mover = err_mover if one else Mover("torsh-stdout", out)
        self._out = _Channel("stdout", out, out_mover, _needles(output.stdout_filters))
        self._err = _Channel("stderr", err, err_mover, _needles(output.stderr_filters))

    @property
    def moved(self) -> int:
        """Bytes moved so far: while some are left, standing still means that a reader stalls."""
        return sum(mover.moved for mover in self._movers())

    @property
    def stalled(self) -> bool:
        """Whether a reader or a disk holds up the output at the moment."""
        return any(mover.stalled for mover in self._movers())

    @property
    def received(self) -> int:
        """Bytes that all workers have written so far, ever."""
        return sum(mover.received for mover in self._movers())

    @property
    def lost(self) -> Mapping[str, str]:
        """Which of stdout and stderr nobody takes any more, and why."""
        sinks = (self._out.sink, self._err.sink)
        return {sink.name: sink.lost for sink in sinks if sink.lost}

    @property
    def shows_status(self) -> bool:
        """Whether there is a terminal for a status line, and one is wanted."""
        return self._status_sink is not None

    def open(self, place: WorkerEnv, folder: str) -> Outlets:
        """Make the streams of a worker whose directory is `folder`, which is made where there is
        something to keep: in stdout.log and stderr.log, chosen lines in filtered_*.log one
        directory up. OSError when a file cannot be opened.
        """
        tail = Tail()
        with contextlib.ExitStack() as undo:
            out_route, err_route = routes(self._output, place)
            out = self._make(self._out, out_route, place, folder, undo)
            err = self._make(self._err, err_route, place, folder, undo, tail)
            undo.pop_all()
        self._mover(self._out, out_route).add(out)
        self._mover(self._err, err_route).add(err)
        return Outlets(out.source.end, err.source.end, (out, err), tail)

    def say(self, text: str) -> None:
        """Write lines of the agent's own to stderr, after what has been read so far."""
        self._unsaid.append(_line(text))
        self._err.mover.request(self._say)

    def write(self, data: bytes) -> None:
        """Write whole lines of the agent's own to stdout, among those of the workers."""
        self._out.mover.request(lambda: self._out.sink.write_line(data))

    def set_status(self, text: str) -> None:
        """Show this line, which may have colours, below the log; "" removes it. Does nothing where
        shows_status is false.
        """
        sink = self._status_sink
        if sink is not None:
            self._status = prefixes.encode(" ".join(text.splitlines()))
            self._channel_of(sink).mover.request(self._show_status)

    def width(self) -> int:
        """Columns of the terminal with the status line."""
        columns = 0
        if self._status_sink is not None:
            with contextlib.suppress(OSError):
                columns = os.get_terminal_size(self._status_sink.fd).columns
        return columns or USUAL_COLUMNS

    def resize(self) -> None:
        """The terminal's window has changed: tell the workers' terminals."""
        for mover in self._movers():
            mover.resize()

    def drain(self, streams: Iterable[Stream], done: Callable[[], None]) -> None:
        """Read what is left in these streams and let go of them, then call `done` in a thread of
        the pump's. To be called when their writers have ended.
        """
        wanted = tuple(streams)
        movers = self._movers()
        count = Countdown(len(movers), done)
        for mover in movers:
            mover.drain(wanted, count)

    def close(self) -> None:
        """Let go of everything when all requests so far are done; is_closed() tells when."""
        self.set_status("")
        others = [mover for mover in self._movers() if mover is not self._err.mover]
        count = Countdown(len(others), self._stop_last)
        for mover in others:
            mover.stop(count)

    def is_closed(self, wait: float) -> bool:
        """Whether all threads have ended, after waiting `wait` seconds at most."""
        deadline = time.monotonic() + wait
        return all(
            mover.is_stopped(max(0.0, deadline - time.monotonic())) for mover in self._movers()
        )

    def give_up(self) -> None:
        """Say what is still unsaid without the threads, as far as stderr takes it at once. Only
        when they are stalled, and the process ends.
        """
        for data in tuple(self._unsaid):
            self._err.sink.write_now(data)

    def _choose_status_sink(self, *sinks: Sink) -> Sink | None:
        if self._output.status_line == "never" or self._environ.get("TERM") == "dumb":
            return None
        for sink in sinks:
            if sink.is_terminal:
                sink.status = StatusLine()
                return sink
        return None

    def _movers(self) -> tuple[Mover, ...]:
        movers = {self._out.mover, self._err.mover}
        return (*movers, self._hidden) if self._hidden else tuple(movers)

    def _mover(self, channel: _Channel, route: Route) -> Mover:
        if route.shown:
            return channel.mover
        if self._hidden is None:
            self._hidden = Mover("torsh-files", None)
        return self._hidden

    def _channel_of(self, sink: Sink) -> _Channel:
        return self._out if self._out.sink is sink else self._err

    def _make(
        self,
        channel: _Channel,
        route: Route,
        place: WorkerEnv,
        folder: str,
        undo: contextlib.ExitStack,
        *taps: Tap,
    ) -> Stream:
        text = prefixes.render(self._output, place, self._hostname)
        if route.kept:
            assert self._folder
            path, limit = f"{folder}/{channel.name}.log", self._output.rotate_bytes
            kept = StreamFile(self._folder, path, limit, self._complain)
            undo.callback(kept.close)
            taps = (kept, *taps)
        if channel.needles:
            file = self._filtered(channel.name, folder)
            taps = (*taps, LineFilter(channel.needles, prefixes.encode(text), file))
        printer = self._printer(channel.sink, text, place.rank) if route.shown else None
        source = open_source(channel.sink.fd, self._width(text)) if route.shown else Pipe()
        undo.callback(os.close, source.fd)
        undo.callback(os.close, source.end)
        clock = time.time if self._output.timestamps else None
        return Stream(source, taps, printer, clock)

    def _printer(self, sink: Sink, text: str, rank: int) -> Printer:
        prefix = prefixes.encode(text)
        if prefixes.is_coloured(self._output, sink.is_terminal, self._environ):
            prefix = prefixes.paint(prefix, rank)
        return Printer(sink, prefix)

    def _width(self, text: str) -> int:
        return len(text) + (prefixes.STAMP_WIDTH if self._output.timestamps else 0)

    def _filtered(self, name: str, folder: str) -> SharedFile:
        path = str(Path(folder).parent / f"filtered_{name}.log")
        file = self._shared.get(name)
        if file is None or file.path != path:  # a new attempt
            assert self._folder
            file = SharedFile(self._folder, path, self._output.rotate_bytes, self._complain)
            self._shared[name] = file
        return file

    def _complain(self, text: str) -> None:
        self.say(f"torshrun: error: {text}")

    def _say(self) -> None:
        self._err.sink.write_line(self._unsaid[0])
        self._unsaid.popleft()

    def _show_status(self) -> None:
        sink = self._status_sink
        if sink is not None and sink.status is not None:
            sink.status.set(self._status)

    def _stop_last(self) -> None:
        """Others may have had something to complain about until now."""
        self._err.mover.stop(lambda: None)


def _needles(texts: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(prefixes.encode(text) for text in texts)


def _line(text: str) -> bytes:
    return prefixes.encode(text if text.endswith("\n") else text + "\n")
