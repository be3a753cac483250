"""Opening files in places where other users may lay links."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from torshrun.procfs import read_text

_STEP = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
_MOST_LINKS = 40


def safe_open(path: str, flags: int, mode: int = 0o600) -> int:
    """os.open(), but never through another user's symbolic link, in whichever part of the path.
    Those of root and one's own are followed. OSError.

    It goes down the path by descriptors, so that who swaps a part meanwhile gains nothing.
    """
    return _open(path, None, flags, mode, _MOST_LINKS)


def trusted_uids() -> set[int]:
    """Users whose files and links are no traps: this one, root, and in a user namespace those of
    outside, of whom it cannot be told which one is root.
    """
    is_namespace = read_text("/proc/self/uid_map").split() != ["0", "0", str((1 << 32) - 1)]
    outside = {int(read_text("/proc/sys/kernel/overflowuid") or 65534)} if is_namespace else set()
    return {0, os.geteuid(), *outside}


def _open(path: str, start: int | None, flags: int, mode: int, links: int) -> int:
    """`start` is the directory that a path which is not absolute begins in; None is the present
    one. So many `links` may still be followed.
    """
    *folders, name = path.split("/")
    here = os.open("/" if path.startswith("/") else ".", _STEP, dir_fd=start)
    try:
        for folder in filter(None, folders):
            there = _open_part(folder, here, _STEP | os.O_DIRECTORY, 0, links)
            os.close(here)
            here = there
        return _open_part(name or ".", here, flags | os.O_NOFOLLOW, mode, links)
    finally:
        os.close(here)


def _open_part(name: str, here: int, flags: int, mode: int, links: int) -> int:
    try:
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
            if (
                found.st_dev == Path("/proc").stat().st_dev
            ):  # the kernel's own: an open file, perhaps
                return os.open(name, flags & ~os.O_NOFOLLOW, mode, dir_fd=here)
            return _open(os.readlink("", dir_fd=link), here, flags, mode, links - 1)
        finally:
            os.close(link)
