"""A directory of checkpoints: each is a directory in it, which has its name only once it is whole.

step-00000100         the checkpoint of step 100
step-00000100.1       the next one of that step, which replaces it
step-00000050-1       one of step 50 that was saved later than those of step 100, by a training that
                      went back or began anew: it is newer than all without "-1"
.tmp-...              one that is being written, or was when its job ended
.lock                 held by who saves there, and gone afterwards
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
    """Where a checkpoint stands among others: the newest has the greatest."""

    course: int
    """How often a training had gone back behind a step that was saved, or begun anew."""
    step: int
    turn: int
    """How often the step had been saved before in this course."""

    @property
    def name(self) -> str:
        """Of its directory. CheckpointError for numbers that no name can have."""
        course = f"-{self.course}" if self.course else ""
        name = f"step-{self.step:08d}{course}" + (f".{self.turn}" if self.turn else "")
        if not _NAME.fullmatch(name):
            raise CheckpointError(
                f"a checkpoint cannot be named {name}: its step or what is counted beside it has "
                f"too many digits. Save to another directory, or remove those that have so many"
            )
        return name


def places(directory: Path) -> dict[Place, Path]:
    """All that are whole by their names, newest first."""
    found = []
    for name in _names(directory):
        match = _NAME.fullmatch(name)
        if match:
            step, course, turn = (int(each or 0) for each in match.groups())
            found.append((Place(course, step, turn), directory / name))
    return dict(sorted(found, reverse=True))


def checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """Steps and directories of those that are whole by their names, by the order in which they
    were saved, newest first."""
    return [(place.step, path) for place, path in places(directory).items()]


def temporary(directory: Path, step: int, token: int) -> Path:
    """Where the ranks of a job write a checkpoint to."""
    return directory / f"{_TEMPORARY}{step}-{token:016x}"


@contextmanager
def held_alone(directory: Path) -> Iterator[None]:
    """While nobody else saves there, of those that see each other's locks. CheckpointError if
    somebody does, OSError if this user may not write there.

    The lock is on a file that only those who may write to the directory can open: whoever may read
    a directory can hold a lock on that, and would keep its owner from saving.
    """
    with opened(directory) as folder:
        descriptor = _locked(folder, directory)
        try:
            yield
        finally:
            with suppress(OSError):  # first: who opens it meanwhile finds that it is not there
                os.unlink(_LOCK, dir_fd=folder)
            with suppress(OSError):  # or children that were forked meanwhile would hold it on
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _locked(folder: int, directory: Path) -> int:
    """The file with the lock, which this process has now."""
    for _ in range(_TRIES):  # others take it and give it back meanwhile
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
    """Open a new file to all who may write to the directory, as far as this user may say so."""
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
    """A new file in an open directory, to which no link can lead."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(name, flags, 0o666, dir_fd=directory)


def publish(written: Path, step: int) -> Path:
    """Give a whole checkpoint its name, by which it is the newest. Its files have been
    synchronised."""
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
    """Have a checkpoint not be one any more. OSError if this user may not."""
    path.rename(path.with_name(f"{_LEAVING}{secrets.token_hex(8)}"))


def removable(directory: Path) -> list[Path]:
    """What lost its name, and what jobs before have left half-written or half-removed."""
    names = _names(directory)
    return [directory / each for each in names if each.startswith((_TEMPORARY, _LEAVING))]


def explained(error: OSError, directory: Path) -> str:
    """What it says; where this user may not do what it was about, also whose the directory is."""
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
