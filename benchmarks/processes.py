"""Starts programs so that they always end: with a timeout, a process group, and a mark.

A launcher's workers may be in their own process groups. Every program is therefore started with a
variable of its own in the environment, which its descendants inherit; processes that still have it
afterwards are killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

MARK = "TORSH_BENCHMARK_RUN"
INTERRUPTED = 130
"""Exit status after Ctrl-C or SIGTERM, as shells report it."""
_GRACE = 2.0


class RunError(Exception):
    """Says that a program failed or exceeded its timeout. The message ends with its last output."""


@dataclass(frozen=True, slots=True)
class Program:
    """Describes a command with everything that it needs; only the environment is inherited."""

    command: Sequence[str]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables to add to this process's own."""


def interrupt_on_term() -> None:
    """Make SIGTERM end the program as cleanly as Ctrl-C."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


@contextlib.contextmanager
def started(
    program: Program, *, stdout: int | None = None, stderr: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start the program, and end it and all of its descendants when the block ends."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        program.command,
        cwd=program.cwd,
        env={**os.environ, **program.env, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _end(process, mark)


def run(program: Program, timeout: float) -> str:
    """Return the program's output. Raises RunError if it fails or takes over `timeout` seconds."""
    with started(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise RunError(f"not done after {timeout:.0f} s: {_tail(error.output)}") from None
    if process.returncode != 0:
        raise RunError(f"exit status {process.returncode}: {_tail(output)}")
    return output


@contextlib.contextmanager
def segments_removed(pattern: str) -> Iterator[None]:
    """Remove files of this pattern in /dev/shm that appear meanwhile and that nobody maps."""
    before = _segments(pattern)
    try:
        yield
    finally:
        for path in _segments(pattern) - before:
            if not _mapped(path):
                path.unlink(missing_ok=True)


def _segments(pattern: str) -> set[Path]:
    return set(Path("/dev/shm").glob(pattern)) if pattern else set()


def _mapped(path: Path) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if str(path) in maps.read_text():
                return True
    return False


def _end(process: subprocess.Popen[str], mark: str) -> None:
    """Send TERM, wait a short grace in which a launcher can clean up, then KILL the rest."""
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    _signal_group(process.pid, signal.SIGKILL)
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def marked(mark: str) -> list[int]:
    """Return the processes whose environment has this mark."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if needle in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool], timeout: float, interval: float = 0.002) -> bool:
    """Poll a callable until it is true. Return False once `timeout` seconds have passed."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True


def _tail(output: str | bytes | None, characters: int = 2000) -> str:
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    return text.strip()[-characters:] or "no output"
