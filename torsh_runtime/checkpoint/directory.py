"""A directory of checkpoints: each is a directory in it, which has its name only once it is whole.

step-00000100         the checkpoint of step 100
step-00000100.1       the next one of that step, which replaces it
.tmp-...              one that is being written, or was when its job ended
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def prune(directory: Path, keep_last: int | None) -> None:
    """Remove all but the newest ones of so many steps, and what jobs before have left half-written
    or half-removed. `keep_last` None: only earlier ones of the same step."""
    steps: list[int] = []
    for step, path in checkpoints(directory):
        is_first = step not in steps
        if is_first:
            steps.append(step)
        if not is_first or (keep_last is not None and len(steps) > keep_last):
            leaving = directory / f"{_LEAVING}{path.name}"
            shutil.rmtree(leaving, ignore_errors=True)
            path.rename(leaving)
    for name in _names(directory):
        if name.startswith((_TEMPORARY, _LEAVING)):
            shutil.rmtree(directory / name, ignore_errors=True)


def synchronise(path: Path) -> None:
    """fsync() a file or directory."""
    with _opened(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _names(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
