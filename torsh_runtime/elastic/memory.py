"""Accesses the agent's memory, in which workers keep the state that their successors resume
from."""

from __future__ import annotations

import mmap
import os
import stat
import struct
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from torsh_runtime.contract import COMMIT_MEMORY
from torsh_runtime.elastic.room import available_memory
from torsh_runtime.errors import CheckpointError, ConfigError

TURNS = 2
"""Commits that each rank has room for: the last complete one and the one being written."""
OWN, COPIES = range(2)
"""The two kinds of slots: a rank's own state, and what it keeps for ranks of another node."""
_ROOM = 1 << 42
"""Bytes of address space per rank: see contract.COMMIT_MEMORY."""
SLOTS = 8 * TURNS
"""Number of slots of a rank: eight kinds, of which State uses two; see versions.py."""
_SLOT = _ROOM // SLOTS
_PAGE = mmap.ALLOCATIONGRANULARITY
_HEAD = struct.Struct("<8sQQQQQ")
_FRAME = struct.Struct("<Q")
_MAGIC = b"torshcm2"
_MOST_TOLD = 1 << 30
Bytes = NDArray[np.uint8]
_user = ""
"""The name of what keeps state in the slots of this process; "" if nothing does yet."""


class Commit(NamedTuple):
    """Describes what a slot contains."""

    sequence: int
    token: int
    """Equal in all ranks' parts of one commit, and different for every commit."""
    num_tensors: int
    """Number of tensors of the whole state."""
    told: tuple[bytes, ...]
    """Texts that describe the content."""


class CommitMemory:
    """Accesses the memory for commits of one node. Each rank writes its own part and reads all.

    A slot has a page that describes it, which is written last, then the content, then the texts
    about the content. Each begins on a page of its own.
    """

    def __init__(self, descriptor: int, local_rank: int) -> None:
        self._descriptor, self._local_rank = descriptor, local_rank
        self._num_ranks = os.fstat(descriptor).st_size // _ROOM

    def __del__(self) -> None:
        os.close(self._descriptor)

    @classmethod
    def of_agent(cls, environ: Mapping[str, str]) -> CommitMemory | None:
        """Return the memory that the agent announces in `environ`; None if there is none.

        Raises ConfigError if it cannot be opened or is something else, as for a process that a
        different user runs or that sees a different /proc.
        """
        told = environ.get(COMMIT_MEMORY, "")
        if not told:
            return None
        try:
            path, device, inode = told.rsplit(":", 2)
            return cls(_opened(path, (int(device), int(inode))), _local_rank(environ))
        except (ValueError, OSError) as error:
            raise ConfigError(
                f"{COMMIT_MEMORY}={told} cannot be opened as the agent's memory ({error}): the "
                f"program must run as torshrun's user and see its /proc; or unset the variable to "
                f"do without commits in memory"
            ) from None

    @property
    def identity(self) -> int:
        """Return a number that no other memory of the job has."""
        status = os.fstat(self._descriptor)
        name = f"{os.uname().nodename} {status.st_dev} {status.st_ino}"
        return xxh3_64_intdigest(name.encode()) >> 1

    @staticmethod
    def claim(user: str) -> None:
        """Have this process's slots for `user` alone. Raises ConfigError if they have another."""
        global _user
        _user = _user or user
        if _user != user:
            raise ConfigError(
                f"{user} needs the agent's memory, which {_user} uses in this process: use one of "
                f"the two"
            )

    def make(self, kind: int, turn: int, num_bytes: int) -> Bytes:
        """Allocate room for `num_bytes` bytes of content in one of this rank's slots.

        The memory is reserved when this returns. Raises CheckpointError if there is too little.
        """
        size = _PAGE + num_bytes
        if size > _SLOT // 2:
            raise CheckpointError(f"{num_bytes} bytes of a rank are more than commits can have")
        start = self._start(kind, turn)
        there = available_memory()
        if (
            self._num_missing(start, size) * self._num_ranks > there
        ):  # each rank needs about as much
            raise CheckpointError(
                f"too little memory for a commit of {num_bytes / 1e6:.1f} MB: the node has "
                f"{there / 1e6:.1f} MB left for this job. Give it more, or do without commits by "
                f"unsetting {COMMIT_MEMORY}"
            )
        try:
            os.posix_fallocate(self._descriptor, start, size)
            memory = mmap.mmap(self._descriptor, size, offset=start)
        except OSError as error:
            raise CheckpointError(
                f"no memory for a commit of {num_bytes / 1e6:.1f} MB: {error.strerror}"
            ) from None
        return np.frombuffer(memory, np.uint8, num_bytes, _PAGE)

    def begin(self, turn: int, kinds: Sequence[int] = (OWN, COPIES)) -> None:
        """Invalidate what is in this rank's slots of that turn."""
        for kind in kinds:
            os.pwrite(self._descriptor, bytes(_HEAD.size), self._start(kind, turn))

    def finish(self, kind: int, commit: Commit, num_bytes: int) -> None:
        """Validate a commit whose content has `num_bytes` bytes. Raises CheckpointError if
        memory is short."""
        start = self._start(kind, commit.sequence % TURNS)
        text = b"".join(_FRAME.pack(len(each)) + each for each in commit.told)
        head = _HEAD.pack(
            _MAGIC, commit.sequence, commit.token, commit.num_tensors, num_bytes, len(text)
        )
        try:
            self._write(text, start + _told_at(num_bytes))
            self._write(head, start)
        except OSError as error:
            raise CheckpointError(
                f"no memory for the description of a commit:  {error.strerror}"
            ) from None

    def own(self, kind: int, turn: int) -> tuple[Commit, Bytes] | None:
        """Return what one of this rank's slots contains, or None. Raises ValueError if it is
        invalid."""
        return self._read(self._start(kind, turn))

    def commits(self) -> list[tuple[Commit, Bytes]]:
        """Return the commits of all ranks of this node with their contents.

        Invalid ones are skipped with a RuntimeWarning.
        """
        found = []
        for rank in range(self._num_ranks):
            for slot in range(len((OWN, COPIES)) * TURNS):
                try:
                    here = self._read(rank * _ROOM + slot * _SLOT)
                except ValueError as error:
                    warnings.warn(
                        f"a commit in memory is invalid:  {error}", RuntimeWarning, stacklevel=2
                    )
                    here = None
                if here is not None:
                    found.append(here)
        return found

    def _read(self, start: int) -> tuple[Commit, Bytes] | None:
        head = os.pread(self._descriptor, _HEAD.size, start)
        magic, sequence, token, num_tensors, num_bytes, length = _HEAD.unpack(head)
        if magic != _MAGIC:
            return None
        if max(sequence, token) >= 1 << 63 or length > _MOST_TOLD or num_bytes > _SLOT // 2:
            raise ValueError(f"it tells of {num_bytes} bytes and {length} about them")
        text = os.pread(self._descriptor, length, start + _told_at(num_bytes))
        size = _PAGE + num_bytes
        memory = mmap.mmap(self._descriptor, size, prot=mmap.PROT_READ, offset=start)
        commit = Commit(sequence, token, num_tensors, tuple(_frames(text)))
        return commit, np.frombuffer(memory, np.uint8, num_bytes, _PAGE)

    def _num_missing(self, start: int, size: int) -> int:
        """Return how many of the `size` bytes from `start` on are not allocated yet."""
        missing, at, end = 0, start, start + size
        while at < end:
            try:
                data = min(os.lseek(self._descriptor, at, os.SEEK_DATA), end)
            except OSError:  # there is nothing behind it
                data = end
            missing += data - at
            at = os.lseek(self._descriptor, data, os.SEEK_HOLE) if data < end else end
        return missing

    def _write(self, content: bytes, start: int) -> None:
        done = 0
        while done < len(content):
            done += os.pwrite(self._descriptor, content[done:], start + done)

    def _start(self, kind: int, turn: int) -> int:
        return self._local_rank * _ROOM + (kind * TURNS + turn) * _SLOT


def aligned_starts(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the offsets of files of these sizes in a slot's content, and their end."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // 64) * 64
    return starts, end


def _opened(path: str, identity: tuple[int, int]) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) == identity and stat.S_ISREG(status.st_mode):
        return descriptor
    os.close(descriptor)
    raise ValueError("it is another file")


def _local_rank(environ: Mapping[str, str]) -> int:
    return int(environ.get("TORSH_LOCAL_RANK", environ.get("LOCAL_RANK", "0")))


def _frames(text: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(text):
        if at + _FRAME.size > len(text):
            raise ValueError("what is told of it is cut short")
        (length,) = _FRAME.unpack_from(text, at)
        at += _FRAME.size
        if length > len(text) - at:
            raise ValueError("what is told of it is cut short")
        found.append(text[at : at + length])
        at += length
    return found


def _told_at(num_bytes: int) -> int:
    return _PAGE + -(-num_bytes // _PAGE) * _PAGE
