"""Manages a directory of checkpoints. Each is a subdirectory, named only once it is complete.

step-00000100         the checkpoint of step 100
step-00000100.1       the next one of that step, which replaces it
step-00000050-1       one of step 50 that was saved later than those of step 100, by a training that
                      went back or began anew: it is newer than all without "-1"
.tmp-...              one that is being written, or was when its job ended
.lock                 held by the job that saves there, and removed afterwards
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from torsh_runtime.errors import CheckpointError

_NAME = re.compile(r"step-(\d{8,18})(?:-(\d{1,9}))?(?:\.(\d{1,9}))?")
_TEMPORARY = ".tmp-"
_LEAVING = ".old-"
_LOCK = ".lock"
_TRIES = 100


class Place(NamedTuple):
    """Orders a checkpoint among others: the newest compares greatest."""

    course: int
    """Number of times the run had gone back behind a saved step, or started over."""
    step: int
    turn: int
    """Number of times the step had been saved before in this course."""

    @property
    def name(self) -> str:
        """Return the name of the checkpoint's directory.

        Raises CheckpointError if a number has too many digits for a name.
        """
        course = f"-{self.course}" if self.course else ""
        name = f"step-{self.step:08d}{course}" + (f".{self.turn}" if self.turn else "")
        if not _NAME.fullmatch(name):
            raise CheckpointError(
                f"a checkpoint cannot be named {name}: its step or what is counted beside it has "
                f"too many digits. Save to another directory, or remove those that have so many"
            )
        return name


def places(directory: Path) -> dict[Place, Path]:
    """Return the checkpoints that are complete by their names, newest first."""
    found = []
    for name in _names(directory):
        match = _NAME.fullmatch(name)
        if match:
            step, course, turn = (int(each or 0) for each in match.groups())
            found.append((Place(course, step, turn), directory / name))
    return dict(sorted(found, reverse=True))


def checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """Return step and path of each checkpoint that is complete by its name, newest save first."""
    return [(place.step, path) for place, path in places(directory).items()]


def temporary(directory: Path, step: int, token: int) -> Path:
    """Return the path to which the ranks of a job write a checkpoint before it is published."""
    return directory / f"{_TEMPORARY}{step}-{token:016x}"


@contextmanager
def held_alone(directory: Path) -> Iterator[None]:
    """Hold the directory's lock during the block, so that no other job saves there.

    The lock is on a file that only users who may write to the directory can open. A lock on the
    directory itself could be held by any user who may read it, which would keep the owner from
    saving.

    Raises CheckpointError if another job holds the lock, OSError if this user may not write there.
    """
    with opened(directory) as folder:
        descriptor = _locked(folder, directory)
        try:
            yield
        finally:
            with suppress(OSError):  # first: another opener then sees that it has no link
                os.unlink(_LOCK, dir_fd=folder)
            with suppress(OSError):  # or children forked in the meantime would keep holding it
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _locked(folder: int, directory: Path) -> int:
    """Return the descriptor of the lock file, which this process now holds."""
    for _ in range(_TRIES):  # others may take and release it in the meantime
        try:
            descriptor = _lock_file(folder)
        except FileNotFoundError:
            continue
        except PermissionError:
            owner = _owner_of_lock(folder)
            if owner is None:
                raise
            raise CheckpointError(
                f"a job of user {owner} is saving to {directory}, or was killed while it did: give "
                f"each job a directory of its own, or remove {directory / _LOCK} if none does"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            break
        except OSError:  # a file system without locks
            return descriptor
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)
    raise CheckpointError(
        f"another job is saving to {directory}: give each job a directory of its own"
    )


def _lock_file(folder: int) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(_LOCK, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
    except FileExistsError:
        return os.open(_LOCK, flags, dir_fd=folder)
    _share(descriptor, os.fstat(folder))
    return descriptor


def _share(descriptor: int, directory: os.stat_result) -> None:
    """Open a new file to all users who may write to the directory, as far as this user may."""
    with suppress(OSError):
        os.fchown(descriptor, -1, directory.st_gid)
    writers = directory.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    if os.fstat(descriptor).st_gid != directory.st_gid:
        writers &= ~stat.S_IWGRP
    with suppress(OSError):
        os.fchmod(descriptor, 0o600 | writers | writers << 1)


def _owner_of_lock(folder: int) -> int | None:
    try:
        return os.stat(_LOCK, dir_fd=folder, follow_symlinks=False).st_uid
    except FileNotFoundError:
        return None


def create(directory: int, name: str) -> int:
    """Create a file in an open directory without following links, and return its descriptor."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(name, flags, 0o666, dir_fd=directory)


def publish(written: Path, step: int) -> Path:
    """Give a complete checkpoint its final name, which makes it the newest, and return its path.

    The caller has already synchronized its files.
    """
    directory = written.parent
    newest = next(iter(places(directory)), Place(0, -1, 0))
    if step > newest.step:
        place = Place(newest.course, step, 0)
    elif step == newest.step:
        place = newest._replace(turn=newest.turn + 1)
    else:
        place = Place(newest.course + 1, step, 0)
    final = directory / place.name
    synchronise(written)
    written.rename(final)
    synchronise(directory)
    return final


def take_name(path: Path) -> None:
    """Rename a checkpoint so that it no longer counts. Raises OSError if this user may not."""
    path.rename(path.with_name(f"{_LEAVING}{secrets.token_hex(8)}"))


def removable(directory: Path) -> list[Path]:
    """Return retired checkpoints and those that earlier jobs left half-written or removed."""
    names = _names(directory)
    return [directory / each for each in names if each.startswith((_TEMPORARY, _LEAVING))]


def explained(error: OSError, directory: Path) -> str:
    """Return the error's text. For a PermissionError, add the owner of the directory."""
    if not isinstance(error, PermissionError):
        return str(error)
    owner = ""
    for place in (directory, *directory.absolute().parents):
        with suppress(OSError):
            found = place.stat()
            owner = f"{place} belongs to user {found.st_uid} ({stat.filemode(found.st_mode)}), and "
            break
    return f"{error}; {owner}this is user {os.geteuid()}: name a directory that it may write to"


def synchronise(path: Path) -> None:
    """Flush a file or directory to the disk with fsync()."""
    with opened(path, 0) as descriptor:
        os.fsync(descriptor)


@contextmanager
def opened(path: Path, flags: int = os.O_DIRECTORY) -> Iterator[int]:
    """Open a directory, or with other flags any file, and yield its descriptor."""
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
