"""The page in which the workers of a node note their newest copies, for each other and the agent.

For each local rank it has two words of 64 bits: the pid of the newest copy, 0 if there is none, and
the number of the operation that comes next in it.
"""

from __future__ import annotations

import mmap
import os
import struct

SUFFIX = "_copies"
"""What follows the path of the status pages in the path of this page."""
NEEDS_NONE = (1 << 63) - 1
"""In place of the number, for a rank of which no copy is to be made."""
_WORD = 8
_RANK = 2 * _WORD


class CopiesPage:
    """Represents the page in a worker."""

    def __init__(self, status_file: str, local_rank: int, count: int) -> None:
        """Map the page of `count` local ranks. Raises OSError where that cannot be done."""
        size = count * _RANK
        descriptor = os.open(status_file + SUFFIX, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._words = memoryview(mmap.mmap(descriptor, size)).cast("Q")
        finally:
            os.close(descriptor)
        self._rank = local_rank

    @property
    def newest(self) -> int:
        """Return the pid of the newest copy of this rank; 0 if there is none."""
        return self._words[2 * self._rank]

    @newest.setter
    def newest(self, pid: int) -> None:
        self._words[2 * self._rank] = pid

    def note_number(self, number: int) -> None:
        """Note the number of the operation that comes next in the newest copy."""
        self._words[2 * self._rank + 1] = number

    def first_needed(self) -> int:
        """Return the number of the first operation that a copy of any rank may repeat."""
        return min(self._words[1::2])

    def has_left(self) -> bool:
        """Return whether there is a rank of which no copy is made."""
        return NEEDS_NONE in self._words[1::2].tolist()


def newest_copy(status_file: str, local_rank: int) -> int:
    """Return the pid of the newest copy of a worker, or 0 if none is noted."""
    try:
        descriptor = os.open(status_file + SUFFIX, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return 0
    try:
        found = os.pread(descriptor, _WORD, local_rank * _RANK)
    finally:
        os.close(descriptor)
    return int(struct.unpack("=Q", found)[0]) if len(found) == _WORD else 0
