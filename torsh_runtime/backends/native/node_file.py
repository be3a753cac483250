"""Lays out the file that the ranks of a node share.

The segment of their group comes first. Behind it each rank has room for the segments of further
groups, and then for arrays. Only the used part takes memory.
"""

from __future__ import annotations

import mmap
import os
import resource
from typing import NamedTuple

from torsh_runtime.backends.native.compiled import _native

_POOL_STRIDE = 16 << 30
"""Bytes of each rank's room for segments; groups that find none there meet over the store."""
_OVERSIZE = 4
"""Room for arrays over the machine's memory: room that is broken up stays usable."""
_HUGE = 2 << 20
"""Bytes of the largest usual pages."""


class NodeFile(NamedTuple):
    """The file of so many ranks, whose segment has so many bytes."""

    ranks: int
    segment_bytes: int

    @property
    def pool(self) -> Room:
        """Return the place of the segments of further groups."""
        return Room(_rounded(self.segment_bytes, mmap.PAGESIZE), _POOL_STRIDE)

    @property
    def arrays(self) -> Room:
        """Return the place of the arrays."""
        stride = _rounded(_OVERSIZE * memory() // self.ranks, _HUGE)
        return Room(self.pool.end(self.ranks), stride)

    def sizes(self, with_arrays: bool, with_pool: bool) -> tuple[int, ...]:
        """Return the sizes that the file may have, the best one first: systems may refuse large
        ones.
        """
        rooms = [self.arrays] * with_arrays + [self.pool] * with_pool
        better = [room.end(self.ranks) for room in rooms if self.ranks > 1]
        return (*better, self.segment_bytes)


class Room(NamedTuple):
    """Holds the offset where the parts of all ranks begin, and the bytes of each."""

    offset: int
    stride: int

    def end(self, ranks: int) -> int:
        return self.offset + ranks * self.stride


def may_map_all() -> bool:
    """Return whether this process may map the rooms of such a file.

    They are far larger than the part that it will use. It may not map them under a limit on its
    address space, nor if all that is mapped is made present at once (mlockall(2)).
    """
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    return not is_limited and _native.maps_lazily()


def memory() -> int:
    """Return the bytes of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE


def _rounded(num_bytes: int, unit: int) -> int:
    return -(-num_bytes // unit) * unit
