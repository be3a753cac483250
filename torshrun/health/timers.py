"""The agent's side of torch's file timers: whoever holds one longer than it asked for is killed.

Scripts use torch.distributed.elastic.timer with a FileTimerClient, which writes each request into
a named pipe as a line of JSON: {"pid", "scope_id", "expiration_time", "signal"}, with a time since
1970 that is negative when the timer is given back.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from torsh_runtime.errors import ConfigError
from torshrun.procfs import read_text, tree
from torshrun.text import printable

TIMER_FILE = "TORCHELASTIC_TIMER_FILE"
"""The variable in which workers find the pipe's path."""
MOST_TIMERS = 10_000
"""Requests for more at a time count for nothing."""
_LONGEST_SLEEP = 60.0  # seconds: the clock that the times are of may be set meanwhile
_SCOPE_CHARS = 200
_FIELDS = itemgetter("pid", "scope_id", "expiration_time", "signal")


class Timer(NamedTuple):
    pid: int
    """The pid as the worker's own pid namespace has it."""
    scope: str
    end: float
    """Seconds since 1970; negative if the timer is released."""
    signo: int
    """The signal that is sent when it has run out; 0 or less is none."""


def make_pipe(environ: Mapping[str, str], scratch: str) -> str:
    """Create a pipe, and return its path: the variable's, if not an outer job's, else one in
    `scratch`.

    Raises ConfigError if it cannot be created.
    """
    named = "" if "TORCHELASTIC_RUN_ID" in environ else environ.get(TIMER_FILE)
    path = named or f"{scratch}/timers"
    try:
        if named and Path(path).is_fifo() and Path(path).stat().st_uid == os.geteuid():
            Path(path).unlink()  # of a job that was killed
        os.mkfifo(path, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{TIMER_FILE}: cannot make a pipe at {path} ({error.strerror}); leave it unset, and "
            f"torshrun chooses a path"
        ) from None
    return path


def parse(line: bytes) -> Timer | None:
    """Return the timer that a line requests; None if it is no request."""
    try:
        pid, scope, end, signo = _FIELDS(json.loads(line))
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    are_numbers = all(type(value) is int for value in (pid, signo)) and type(end) in (int, float)
    if not are_numbers or not isinstance(scope, str) or not abs(end) < 1e12:
        return None
    if signo not in range(signal.NSIG):  # 0 gives one back
        return None
    return Timer(pid, printable(scope[:_SCOPE_CHARS]), end, signo)


@dataclass(eq=False)
class TimerServer:
    """Serves the workers of this node. All of it belongs to the loop's thread."""

    path: str
    loop: asyncio.AbstractEventLoop
    workers: Callable[[], Mapping[int, int]]
    """A function that returns rank by pid of those that live: only they and what they started are
    ever killed.
    """
    on_expired: Callable[[int, str], None]
    """A function that is called with the rank and what has happened, just before."""

    def __post_init__(self) -> None:
        self._timers: dict[tuple[int, str], asyncio.TimerHandle] = {}
        self._unfinished = b""
        # For writing, too: so the pipe has never an end.
        self._pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        self.loop.add_reader(self._pipe, self._read)

    def forget(self) -> None:
        """Cancel all timers so far: they are of workers that have ended."""
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()

    def close(self) -> None:
        self.loop.remove_reader(self._pipe)
        os.close(self._pipe)
        self.forget()

    def _read(self) -> None:
        try:
            data = os.read(self._pipe, 65536)
        except BlockingIOError:  # somebody else has read it
            return
        *lines, rest = (self._unfinished + data).split(b"\n")
        self._unfinished = rest if len(rest) <= select.PIPE_BUF else b""
        for timer in filter(None, map(parse, lines)):
            if handle := self._timers.pop((timer.pid, timer.scope), None):
                handle.cancel()
            if timer.end >= 0 and len(self._timers) < MOST_TIMERS:
                self._wait(timer)

    def _wait(self, timer: Timer) -> None:
        wait = min(max(0.0, timer.end - time.time()), _LONGEST_SLEEP)
        handle = self.loop.call_later(wait, self._look, timer)
        self._timers[timer.pid, timer.scope] = handle

    def _look(self, timer: Timer) -> None:
        del self._timers[timer.pid, timer.scope]
        if timer.end > time.time():
            self._wait(timer)
        elif 0 < timer.signo < signal.NSIG:
            self._kill(timer)

    def _kill(self, timer: Timer) -> None:
        for worker, rank in self.workers().items():
            for pid in tree(worker):
                if _pid_inside(pid) == timer.pid:
                    self.on_expired(rank, f"its timer {timer.scope} ran out")
                    with suppress(OSError):  # it has just ended, or became another user's
                        os.kill(pid, timer.signo)
                    return


def _pid_inside(pid: int) -> int:
    """Return the pid that the process, perhaps in a pid namespace, has for itself; 0 is unknown."""
    found = re.search(r"^NSpid:.*?(\d+)$", read_text(f"/proc/{pid}/status"), re.MULTILINE)
    return int(found[1]) if found else 0
