"""Keeps the state of one rank's shards in memory that outlives its process, with checksums."""

from __future__ import annotations

import json
import threading
import warnings
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from torsh_runtime.arrays.raw import copy_out, dtype_name, memory_of
from torsh_runtime.checkpoint.manifest import Manifest
from torsh_runtime.checkpoint.pieces import PieceReader
from torsh_runtime.checkpoint.plan import Held
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES
from torsh_runtime.checkpoint.writer import FileLayout
from torsh_runtime.elastic.memory import COPIES, OWN, TURNS, Commit, CommitMemory
from torsh_runtime.elastic.neighbours import Neighbours
from torsh_runtime.elastic.parts import told_of
from torsh_runtime.errors import CheckpointError, CommError
from torsh_runtime.layout import ShardedTensor
from torsh_runtime.parallel.state import Contents

Bytes = NDArray[np.uint8]
STATE, GRADIENTS = OWN, COPIES
"""The kinds of versions: the state before a step, and the gradients of that step."""
ALIKE = 4
"""A further kind: what all ranks have alike before a step."""
_COPIES = {STATE: 2, GRADIENTS: 3}
"""The kinds of slots with what was kept for a rank of the node before."""
_CHUNK = 1 << 18
"""Bytes per checksum, few enough to be still in a cache when they are summed up."""


class Key(NamedTuple):
    """Identifies a version of one rank."""

    kind: int
    owner: int
    """The rank whose state it is."""
    number: int
    """The number of the step."""
    world: int
    """The number of ranks that had parts then."""


class Version(PieceReader):
    """Represents what was kept of one step."""

    def __init__(self, commit: Commit, manifest: Manifest, content: Bytes) -> None:
        self.where = f"the state before step {commit.sequence} in memory"
        self.commit, self.manifest, self.content = commit, manifest, content

    def read_all(self, reads: Iterable[tuple[str, ShardedTensor]]) -> None:
        """Read pieces of tensors, by name."""
        for name, target in reads:
            self.read(name, target)

    def read_file(self, file: str, start: int, target: Bytes) -> None:
        """Fill the target from the content, which has one file."""
        target[:] = self.content[start : start + target.size]


class _Room(NamedTuple):
    """Holds the memory for contents of one layout."""

    held: list[Held]
    layout: FileLayout
    memory: Bytes
    told: bytes


class Versions:
    """Keeps and reads one rank's versions: of each kind those of the last two steps. States and
    gradients are copied to the next node, if there is one."""

    def __init__(self, memory: CommitMemory, rank: int, world_size: int) -> None:
        self._memory, self._rank, self._world_size = memory, rank, world_size
        self._rooms: dict[tuple[int, int], _Room] = {}
        self._writing: threading.Thread | None = None
        self._failed: Exception | None = None
        self._neighbours: dict[int, Neighbours] = {}
        self._written: dict[int, tuple[Commit, Bytes]] = {}
        """What this process has kept last, by kind."""

    def move(self, rank: int, world_size: int) -> None:
        """Keep versions of another rank from now on, among other ranks."""
        if (rank, world_size) != (self._rank, self._world_size):
            self._rank, self._world_size = rank, world_size
            self._rooms.clear()
            self._written.clear()

    def copy_to(self, neighbours: Mapping[int, Neighbours]) -> None:
        """Copy what is kept from now on to the next node, by kind; those of states belong to a
        thread. What is under way has to end by itself, as its group was closed."""
        with suppress(CommError, CheckpointError):
            self.wait()
        self._neighbours = {**neighbours}

    def clear(self) -> None:
        """Forget what is in memory, of an earlier start of the job."""
        self._written.clear()
        for turn in range(TURNS):
            self._memory.begin(turn, [slot for slot, _ in _slots()])

    def keep(self, kind: int, number: int, contents: Contents) -> None:
        """Copy the contents. Raises CheckpointError if memory is too short."""
        self._prepared(kind, number, contents)()

    def begin(self, kind: int, number: int, contents: Contents) -> None:
        """Begin to copy the contents, which must not change until wait()."""
        self._start(self._prepared(kind, number, contents))

    def begin_to_send(self, kind: int, number: int) -> bool:
        """Begin to copy what this process has kept to the next node. Return False if it has kept
        another state last."""
        commit, content = self._written.get(kind, (None, None))
        if commit is None or content is None or commit.sequence != number:
            return False
        self._start(partial(self._send, kind, commit, content))
        return True

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # which wait() raises
                self._failed = error

        self._writing = threading.Thread(target=run, name="torsh-versions", daemon=True)
        self._writing.start()

    def wait(self) -> None:
        """Wait until that is copied. Raises CheckpointError if it could not be."""
        if self._writing is not None:
            self._writing.join()
        self._writing, failed, self._failed = None, self._failed, None
        if failed is not None:
            raise failed

    def found(self, owners: Container[int] | None = None) -> dict[Key, Version]:
        """Return what is whole in this rank's slots, of these ranks among as many as now, or None:
        of all ranks that there ever were. What is damaged is passed over with a RuntimeWarning."""
        found = {}
        for (slot, kind), turn in product(_slots(), range(TURNS)):
            try:
                here = self._memory.own(slot, turn)
                if here is not None and (owners is None or here[0].token in owners):
                    version = version_of(*here)
                    world = version.manifest.world_size
                    if owners is None or world == self._world_size:
                        found[Key(kind, here[0].token, here[0].sequence, world)] = version
            except (ValueError, KeyError, TypeError, CheckpointError) as error:
                what = "gradients" if kind == GRADIENTS else "a state"
                warnings.warn(
                    f"rank {self._rank} passed over {what} in memory: {error}",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return found

    def drop_from(self, number: int) -> None:
        """Invalidate what this rank's slots have of steps from this one on, which is repeated,
        maybe with other values. The state before it stays."""
        for (slot, kind), turn in product(_slots(), range(TURNS)):
            with suppress(ValueError):
                here = self._memory.own(slot, turn)
                if here and here[0].sequence >= number + (kind != GRADIENTS):
                    self._memory.begin(turn, (slot,))

    def _send(self, kind: int, commit: Commit, content: Bytes) -> None:
        if kind in self._neighbours:
            self._neighbours[kind].exchange(_COPIES[kind], commit, content)

    def _prepared(self, kind: int, number: int, contents: Contents) -> Callable[[], None]:
        turn = number % TURNS
        self._memory.begin(turn, (kind,))
        self._written.pop(kind, None)
        room = self._room(kind, turn, _held(contents))
        copies = [
            (contents.tensors[held.name].values, room.memory[start:end])
            for held, start, end in _places(room.layout)
        ]
        plain = {"values": contents.values, "aliases": contents.aliases}
        text = json.dumps(plain).encode()

        def write() -> None:
            sums = [each for values, target in copies for each in _copied(values, target)]
            told = (room.told, _with_sum(text), _with_sum(json.dumps(sums).encode()))
            commit = Commit(number, self._rank, len(copies), told)
            self._memory.finish(kind, commit, room.memory.size)
            self._written[kind] = commit, room.memory
            self._send(kind, commit, room.memory)

        return write

    def _room(self, kind: int, turn: int, held: list[Held]) -> _Room:
        room = self._rooms.get((kind, turn))
        if room is None or room.held != held:
            layout = FileLayout.of(self._rank, held)
            memory = self._memory.make(kind, turn, layout.num_bytes)
            room = _Room(held, layout, memory, told_of([layout], self._world_size))
            self._rooms[kind, turn] = room
        return room


def _slots() -> list[tuple[int, int]]:
    """Return the kinds of slots, each with the kind of versions that it has."""
    copies = [(slot, kind) for kind, slot in _COPIES.items()]
    return [*((kind, kind) for kind in (*_COPIES, ALIKE)), *copies]


def _held(contents: Contents) -> list[Held]:
    """Return all pieces of this rank, also those without elements, whose shapes are asked for."""
    return [
        Held(name, dtype_name(each.values), each.piece) for name, each in contents.tensors.items()
    ]


def _places(layout: FileLayout) -> Iterator[tuple[Held, int, int]]:
    for held, start in layout.starts.items():
        yield held, start, start + held.piece.size * ITEMSIZES[held.dtype]


def _copied(values: Any, target: Bytes) -> Iterator[int]:
    """Copy the bytes of an array, and yield their checksums."""
    source = memory_of(values)
    if source is None:
        copy_out(values, target)
        yield from _sums(target)
        return
    for at in range(0, target.size, _CHUNK):
        chunk = target[at : at + _CHUNK]
        np.copyto(chunk, source[at : at + _CHUNK])
        yield xxh3_64_intdigest(chunk.data)


def _sums(content: Bytes) -> Iterator[int]:
    for at in range(0, content.size, _CHUNK):
        yield xxh3_64_intdigest(content[at : at + _CHUNK].data)


def version_of(commit: Commit, content: Bytes) -> Version:
    """Return what a slot contains. Raises CheckpointError, ValueError, KeyError or TypeError if it
    is damaged."""
    described = manifest_of(commit)
    expected = iter(json.loads(_checked(commit.told[2])))
    places = sorted(
        (stored.start, stored.piece.size * ITEMSIZES[tensor.dtype], name)
        for name, tensor in described.tensors.items()
        for stored in tensor.pieces
    )
    for start, size, name in places:
        for found in _sums(content[start : start + size]):
            if found != next(expected, None):
                raise CheckpointError(f"{name!r} of step {commit.sequence} is damaged")
    return Version(commit, described, content)


def manifest_of(commit: Commit) -> Manifest:
    """Return the description of a slot's content. Raises as version_of() does."""
    told, plain, _ = commit.told
    described, own = Manifest.from_bytes(told), json.loads(_checked(plain))
    return Manifest(
        commit.sequence,
        described.world_size,
        0.0,
        described.tensors,
        own["values"],
        own["aliases"],
        described.files,
    )


def _with_sum(text: bytes) -> bytes:
    return b"%08x\n" % zlib.crc32(text) + text


def _checked(told: bytes) -> bytes:
    """Return a text without its checksum. Raises ValueError if that does not fit."""
    total, _, text = told.partition(b"\n")
    if total != b"%08x" % zlib.crc32(text):
        raise ValueError("what is told of it is damaged")
    return text
