"""Holds shared memory that its owners have left, for a group that meets again after a loss."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

NONE_YET = 0
"""The number told by a process that has had no shared memory of its group."""
NONE_LIKE_IT = -1
"""The number told by one that has had some, but has none to spare that fits."""


class Buffer:
    """Represents memory that the ranks of a node have mapped, with the descriptor of its file."""

    def __init__(
        self, memory: mmap.mmap, descriptor: int, local: Sequence[int], start: int, num_bytes: int
    ) -> None:
        """Take over the descriptor. This rank's part begins at `start`."""
        self.memory, self.descriptor = memory, descriptor
        self.local, self.start, self.num_bytes = (*local,), start, num_bytes
        self.number = os.fstat(descriptor).st_ino
        """A number that no other file of this machine's shared memory has."""
        self._close = weakref.finalize(self, os.close, descriptor)

    def close_file(self) -> None:
        """Close the descriptor of memory that is not going to be handed out again."""
        self._close()


class Spares:
    """Keeps the memory that arrays leave while a group is being configured anew.

    Its pages need not be given and zeroed again. That is possible only if no former rank can write
    there any more: each is either a rank of the new group, at the same place, or has ended.
    """

    def __init__(self) -> None:
        self._kept: list[Buffer] = []
        self._is_keeping = self._has_had_any = False

    def keep(self) -> None:
        """Keep from now on what arrays leave."""
        self._is_keeping = True

    def close(self) -> None:
        """Keep nothing more. What is there can be taken."""
        self._is_keeping = False

    def forget(self) -> None:
        """Give the system what nobody has taken."""
        self._kept, self._is_keeping = [], False

    def like(self, local: Sequence[int], start: int, num_bytes: int) -> Buffer | None:
        """Return memory of the same ranks and size, if there is any."""
        wanted = (*local,), start, num_bytes
        fits = (each for each in self._kept if (each.local, each.start, each.num_bytes) == wanted)
        return next(fits, None)

    def number_of(self, found: Buffer | None) -> int:
        """Return the number of the memory that this process offers, or why it offers none."""
        if found is not None:
            return found.number
        return NONE_LIKE_IT if self._has_had_any else NONE_YET

    def part(self, buffer: Buffer) -> NDArray[np.uint8]:
        """Return this rank's bytes. Once they and all views of them are gone, they are kept, or
        given back to the system."""
        self._has_had_any = True
        self._kept = [each for each in self._kept if each.number != buffer.number]
        part = np.ndarray(buffer.num_bytes, np.uint8, buffer.memory, buffer.start)
        weakref.finalize(part, self._leave, buffer, os.getpid()).atexit = False
        return part

    def _leave(self, buffer: Buffer, owner: int) -> None:
        if os.getpid() != owner:  # a forked child has the same memory, and no say in it
            return
        if self._is_keeping:
            self._kept.append(buffer)
        elif buffer.num_bytes:
            with suppress(OSError):  # locked in memory
                buffer.memory.madvise(mmap.MADV_REMOVE, buffer.start, buffer.num_bytes)


def holder_of(told: Sequence[int], local: Sequence[int]) -> int | None:
    """Return the first rank that has the memory that all ranks may take, by what they told; None
    if they need new memory.

    A rank that has had memory and offers none may still use it.
    """
    numbers = {*told} - {NONE_YET}
    if len(numbers) != 1 or NONE_LIKE_IT in numbers:
        return None
    return next(rank for rank, number in zip(local, told, strict=True) if number != NONE_YET)
