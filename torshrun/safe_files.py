"""Directories and files that nobody can lead elsewhere by putting a link in their way."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY


def open_for_append(path: str, folder: int | None = None) -> int:
    """A descriptor of a regular file, which is made, for this user only, where it is not there.
    `folder` is the descriptor of the directory that a relative path begins at. OSError if that
    cannot be done, if the path's last part is a link, or if it names anything but a file.
    """
    descriptor = os.open(path, _APPEND | os.O_NONBLOCK, 0o600, dir_fd=folder)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", path)


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
        """A new directory, for this user only, and those above it where they are missing."""
        parent, name = Path(path).parent, PurePath(path).name
        parent.mkdir(parents=True, exist_ok=True)
        above = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.mkdir(name, 0o700, dir_fd=above)
            return cls(path, os.open(name, _FOLDER, dir_fd=above))
        finally:
            os.close(above)

    def open_for_append(self, path: str) -> int:
        """As above, for a file below; its directories are made too."""
        with self._above(path) as (folder, name):
            return open_for_append(name, folder)

    def rename(self, path: str, name: str) -> None:
        """Give what is at this path another name in the same directory, in place of what had it."""
        with self._above(path) as (folder, old):
            os.replace(old, name, src_dir_fd=folder, dst_dir_fd=folder)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)

    @contextlib.contextmanager
    def _above(self, path: str) -> Iterator[tuple[int, str]]:
        """The directory that the path's last part is in, and that part."""
        *parts, name = PurePath(path).relative_to(self.path).parts
        folder = os.dup(self._descriptor)
        try:
            for part in parts:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=folder)
                inner = os.open(part, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder, name
        finally:
            os.close(folder)
