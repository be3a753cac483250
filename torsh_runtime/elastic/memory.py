"""Memory of the agent's, in which this worker leaves what those that follow it go on from."""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.contract import COMMIT_MEMORY
from torsh_runtime.errors import ConfigError

SLOTS = 2
"""Commits that each rank has room for: the last whole one, and the one that is being written."""
_ROOM = 1 << 40
"""Bytes of a rank, of addresses: see contract.COMMIT_MEMORY."""
_PAGE = mmap.ALLOCATIONGRANULARITY
_HEAD = struct.Struct("<8sQQQQ")
_MAGIC = b"torshcm1"
Bytes = NDArray[np.uint8]


class Slot(NamedTuple):
    """A commit of one rank: bytes that tell what is in it, and those of its tensors."""

    sequence: int
    token: int
    """The same of all ranks' parts of one commit, and of no other."""
    told: bytes
    content: Bytes


class CommitMemory:
    """Of one node. Each of its ranks writes to its own part, and reads all.

    A slot is a page that says what is in it, written last, then the content, then what is told of
    it, each from a page on.
    """

    def __init__(self, descriptor: int, local_rank: int) -> None:
        self._descriptor, self._local_rank = descriptor, local_rank
        self._num_ranks = os.fstat(descriptor).st_size // _ROOM

    @classmethod
    def of_agent(cls, environ: Mapping[str, str]) -> CommitMemory | None:
        """The memory that the agent tells of; None without one. ConfigError if the descriptor is
        something else, as when a script between agent and worker has used its number."""
        told = environ.get(COMMIT_MEMORY, "")
        if not told:
            return None
        try:
            descriptor, device, inode = map(int, told.split(":"))
            status = os.fstat(descriptor)
            is_it = (status.st_dev, status.st_ino) == (device, inode)
        except (ValueError, OSError):
            is_it = False
        if not is_it or not stat.S_ISREG(status.st_mode):
            raise ConfigError(
                f"{COMMIT_MEMORY}={told}, but that descriptor is not the agent's memory: do not "
                f"close or reuse it between torshrun and the program, or unset the variable to do "
                f"without commits in memory"
            )
        os.set_inheritable(descriptor, False)
        return cls(descriptor, int(environ.get("LOCAL_RANK", "0")))

    def make(self, slot: int, num_bytes: int) -> Bytes:
        """Room for content of so many bytes in this rank's slot."""
        memory = mmap.mmap(self._descriptor, _PAGE + num_bytes, offset=self._start(slot))
        return np.frombuffer(memory, np.uint8, num_bytes, _PAGE)

    def begin(self, slot: int) -> None:
        """What is in this rank's slot is no commit any more."""
        os.pwrite(self._descriptor, bytes(_HEAD.size), self._start(slot))

    def finish(self, slot: int, sequence: int, token: int, told: bytes, num_bytes: int) -> None:
        """It is one now, with content of so many bytes."""
        start = self._start(slot)
        os.pwrite(self._descriptor, told, start + _told_at(num_bytes))
        head = _HEAD.pack(_MAGIC, sequence, token, num_bytes, len(told))
        os.pwrite(self._descriptor, head, start)

    def slots(self) -> list[Slot]:
        """All commits of all ranks of this node."""
        found = []
        for rank in range(self._num_ranks):
            for slot in range(SLOTS):
                here = self._read(rank * _ROOM + slot * (_ROOM // SLOTS))
                if here is not None:
                    found.append(here)
        return found

    def _read(self, start: int) -> Slot | None:
        head = os.pread(self._descriptor, _HEAD.size, start)
        magic, sequence, token, num_bytes, length = _HEAD.unpack(head)
        if magic != _MAGIC:
            return None
        told = os.pread(self._descriptor, length, start + _told_at(num_bytes))
        size = _PAGE + num_bytes
        memory = mmap.mmap(self._descriptor, size, prot=mmap.PROT_READ, offset=start)
        return Slot(sequence, token, told, np.frombuffer(memory, np.uint8, num_bytes, _PAGE))

    def _start(self, slot: int) -> int:
        return self._local_rank * _ROOM + slot * (_ROOM // SLOTS)


def _told_at(num_bytes: int) -> int:
    return _PAGE + -(-num_bytes // _PAGE) * _PAGE
