"""Failures behind operations that only a stream waits for, so that no call of the program fails.

`wait()` returns before the GPU has done an operation. When NCCL is aborted, the stream goes on
with arbitrary numbers. As torch's watchdog does, the process is then ended, unless the variable
TORSH_ON_GPU_FAILURE is "raise": the group's next call, its end and the end of the program fail.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from contextlib import suppress
from typing import Protocol, TextIO

from torsh_runtime.error_file import leave_account
from torsh_runtime.errors import CommError, ConfigError

VARIABLE = "TORSH_ON_GPU_FAILURE"
_CHOICES = ("end", "raise")
_STDERR = 2
"""The file descriptor that torshrun, a shell or a log collector reads."""
_PATIENCE = 5.0
"""Seconds within which the reason of the end is told, or not at all."""


class Group(Protocol):
    """Lists what is to be known of a group at the end of the program."""

    @property
    def unreported(self) -> CommError | None:
        """Return the failure that the program has not heard of, or None."""


_groups: weakref.WeakSet[Group] = weakref.WeakSet()


def ends_process() -> bool:
    """Return whether an unreported failure ends the process.

    Raises ConfigError if the environment makes no sense.
    """
    choice = os.environ.get(VARIABLE) or "end"
    if choice not in _CHOICES:
        raise ConfigError(f"{VARIABLE} must be one of {', '.join(_CHOICES)}, not {choice!r}")
    return choice == "end"


def look_at_exit(group: Group) -> None:
    """Fail the program at its end if the group has failed and the program has not heard of it."""
    if not _groups:
        atexit.unregister(_check_at_exit)
        atexit.register(_check_at_exit)
    _groups.add(group)


def end_process(error: CommError) -> None:
    """End the process with SIGABRT, after telling why on stderr and in the error file."""
    _tell(
        error,
        "The GPU goes on with arbitrary numbers, so this process ends. "
        f"{VARIABLE}=raise makes the group's next call raise the error instead.",
    )
    os.abort()


def _check_at_exit() -> None:
    for group in tuple(_groups):
        error = group.unreported
        if error is not None:
            _tell(error, "Numbers that the program has computed since are arbitrary.")
            os._exit(1)


def _tell(error: CommError, consequence: str) -> None:
    """Tell why the process ends, within bounded time: who reads stderr may have stopped."""
    what = "an operation that a stream had waited for has failed"
    words = f"torsh: {what}: {error} {consequence}\n"

    def tell() -> None:
        with suppress(Exception):
            leave_account(error, is_end=True)
        _write(words)

    thread = threading.Thread(target=tell, name="torsh-nccl-last-words", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can be started at the end of the program
        tell()
    else:
        thread.join(_PATIENCE)


def _write(words: str) -> None:
    """Write to the process's standard error itself, and to what stands for it in Python."""
    with suppress(OSError):
        os.write(_STDERR, words.encode(errors="backslashreplace"))
    with suppress(Exception):
        sys.stdout.flush()
    with suppress(Exception):
        if not _is_standard(sys.stderr):
            sys.stderr.write(words)
        sys.stderr.flush()


def _is_standard(stream: TextIO) -> bool:
    """Return whether the stream writes to the process's standard error."""
    try:
        return stream.fileno() == _STDERR
    except (OSError, ValueError, AttributeError):  # a notebook's, a StringIO
        return False
