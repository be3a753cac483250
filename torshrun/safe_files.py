"""Directories and files that nobody can lead elsewhere by putting a link in their way.

Whoever swaps a part of a path meanwhile gains nothing: it is gone down by descriptors.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path, PurePath

from torshrun.procfs import read_number, read_text

_STEP = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
_FOLDER = _STEP | os.O_DIRECTORY
APPEND = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
_MOST_LINKS = 40


def safe_open(path: str, flags: int, mode: int = 0o600) -> int:
    """Open as os.open() does, but never through another user's symbolic link in any part of the
    path.

    Links of root and of this user are followed. Raise OSError if the file cannot be opened so.
    """
    return _open(path, None, flags, mode, _MOST_LINKS)


def trusted_uids() -> set[int]:
    """Return the users whose files and links are no traps: this one and root.

    In a user namespace, they include the users outside of it, among whom root cannot be told apart.
    """
    is_namespace = read_text("/proc/self/uid_map").split() != ["0", "0", str((1 << 32) - 1)]
    outside = {read_number("/proc/sys/kernel/overflowuid") or 65534} if is_namespace else set()
    return {0, os.geteuid(), *outside}


def _open(path: str, start: int | None, flags: int, mode: int, links: int, make: int = 0) -> int:
    """Open a path as safe_open() does, from the directory `start`; None is the current one.

    At most `links` links may still be followed. Missing directories are made with the mode `make`,
    unless that is 0.
    """
    *folders, name = path.split("/")
    here = os.open("/" if path.startswith("/") else ".", _STEP, dir_fd=start)
    try:
        for folder in filter(None, folders):
            there = _open_part(folder, here, _FOLDER, 0, links, make)
            os.close(here)
            here = there
        return _open_part(name or ".", here, flags | os.O_NOFOLLOW, mode, links, make)
    finally:
        os.close(here)


def _open_part(name: str, here: int, flags: int, mode: int, links: int, make: int) -> int:
    try:
        return os.open(name, flags, mode, dir_fd=here)
    except FileNotFoundError:
        if not make:
            raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, make, dir_fd=here)
        return os.open(name, flags, mode, dir_fd=here)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):  # what a link is refused with
            raise
        link = os.open(name, _STEP, dir_fd=here)
        try:
            found = os.fstat(link)
            if not stat.S_ISLNK(found.st_mode) or not links:
                raise
            if found.st_uid not in trusted_uids():
                raise OSError(errno.ELOOP, f"{name} is another user's symbolic link") from None
            if found.st_dev == Path("/proc").stat().st_dev:  # the kernel's own: an open file
                return os.open(name, flags & ~os.O_NOFOLLOW, mode, dir_fd=here)
            return _open(os.readlink("", dir_fd=link), here, flags, mode, links - 1, make)
        finally:
            os.close(link)


class Folder:
    """A directory that is held open. What is below it is found from there, and never by its path:
    whoever owns a directory above may rename or replace it without being given anything.

    Methods take whole paths, as they are shown to people, raise OSError, and are for any thread.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def make(cls, path: str) -> Folder:
        """Make a new directory, for this user only, and those above it where they are missing.

        As with safe_open(), no other user's symbolic link leads there.
        """
        parent, name = str(PurePath(path).parent), PurePath(path).name
        above = _open(parent, None, _FOLDER, 0, _MOST_LINKS, make=0o777)
        try:
            os.mkdir(name, 0o700, dir_fd=above)
            folder = cls(path, os.open(name, _FOLDER, dir_fd=above))
        finally:
            os.close(above)
        try:
            folder._check_own()
        except BaseException:
            folder.close()
            raise
        return folder

    def _check_own(self) -> None:
        """Raise OSError if another user has replaced the directory that was just made.

        Then its owner is not the owner of what this process makes in it. That owner need not be
        this process's user, for instance on a network file system.
        """
        name, flags = f".{os.urandom(8).hex()}", os.O_CREAT | os.O_EXCL | os.O_WRONLY
        probe = os.open(name, flags | os.O_CLOEXEC, 0o600, dir_fd=self._descriptor)
        try:
            os.unlink(name, dir_fd=self._descriptor)
            owner = os.fstat(self._descriptor).st_uid
            if os.fstat(probe).st_uid != owner:
                raise OSError(errno.ELOOP, f"user {owner} has put another in its place")
        finally:
            os.close(probe)

    def open_for_append(self, path: str) -> int:
        """Return a descriptor of a regular file below, to append to it.

        The file and its directories are made, for this user only, where they are missing. Raise
        OSError if the path has a link, or names anything but a file.
        """
        flags = os.O_WRONLY | APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = self._open(PurePath(path), flags)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", path)

    def rename(self, path: str, name: str) -> None:
        """Give what is at this path another name in the same directory, in place of what had it."""
        folder = self._open(PurePath(path).parent, _FOLDER)
        try:
            os.replace(PurePath(path).name, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        os.close(self._descriptor)

    def _open(self, path: PurePath, flags: int) -> int:
        below = str(path.relative_to(self.path))
        try:
            return _open(below, self._descriptor, flags, 0o600, links=0, make=0o700)
        except OSError as error:  # which names the last part of the path only
            raise OSError(error.errno, error.strerror, str(path)) from None
