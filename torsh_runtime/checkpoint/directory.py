"""A directory of checkpoints: each is a directory in it, which has its name only once it is whole.

step-00000100         the checkpoint of step 100
step-00000100.1       the next one of that step, which replaces it
.tmp-...              one that is being written, or was when its job ended
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torsh_runtime.errors import CheckpointError

_NAME = re.compile(r"step-(\d{8,18})(?:\.(\d{1,9}))?")
_TEMPORARY = ".tmp-"
_LEAVING = ".old-"


def checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """Steps and directories of those that are whole by their names, newest first."""
    found = []
    for name in _names(directory):
        match = _NAME.fullmatch(name)
        if match:
            found.append((int(match[1]), int(match[2] or 0), directory / name))
    return [(step, path) for step, _, path in sorted(found, reverse=True)]


def temporary(directory: Path, step: int, token: int) -> Path:
    """Where the ranks of a job write a checkpoint to."""
    return directory / f"{_TEMPORARY}{step}-{token:016x}"


@contextmanager
def held_alone(directory: Path) -> Iterator[None]:
    """While nobody else saves there, of those that see each other's locks. CheckpointError if
    somebody does."""
    with opened(directory) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"another job is saving to {directory}: give each job a directory of its own"
            ) from None
        except OSError:  # a file system without locks
            pass
        try:
            yield
        finally:  # or children that were forked meanwhile would hold it on
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)


def create(directory: int, name: str) -> int:
    """A new file in an open directory, to which no link can lead."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(name, flags, 0o666, dir_fd=directory)


def publish(written: Path, step: int) -> Path:
    """Give a whole checkpoint its name. Its files have been synchronised."""
    directory = written.parent
    number = 0
    taken = [name for each, path in checkpoints(directory) if each == step for name in [path.name]]
    if taken:
        match = _NAME.fullmatch(taken[0])
        number = int(match[2] or 0) + 1 if match else 0
    final = directory / (f"step-{step:08d}" + (f".{number}" if number else ""))
    synchronise(written)
    written.rename(final)
    synchronise(directory)
    return final


def retire(directory: Path, keep_last: int | None) -> list[Path]:
    """Take the names from all but the newest ones of so many steps; `keep_last` None: only from
    earlier ones of the same step. Returns what may be removed: these, and what jobs before have
    left half-written or half-removed."""
    steps: list[int] = []
    for step, path in checkpoints(directory):
        is_first = step not in steps
        if is_first:
            steps.append(step)
        if not is_first or (keep_last is not None and len(steps) > keep_last):
            path.rename(directory / f"{_LEAVING}{secrets.token_hex(8)}")
    return [
        directory / each for each in _names(directory) if each.startswith((_TEMPORARY, _LEAVING))
    ]


def synchronise(path: Path) -> None:
    """fsync() a file or directory."""
    with opened(path, 0) as descriptor:
        os.fsync(descriptor)


@contextmanager
def opened(path: Path, flags: int = os.O_DIRECTORY) -> Iterator[int]:
    """The descriptor of a directory, or with other flags of whatever it is."""
    descriptor = os.open(path, flags | os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _names(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
