"""Commits: a training's state in the agents' memory, by all ranks together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.checkpoint.manifest import Manifest, StoredFile, StoredTensor
from torsh_runtime.checkpoint.pieces import PieceReader
from torsh_runtime.checkpoint.plan import Held
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.checkpoint.saving import Planner, tensors_of
from torsh_runtime.checkpoint.writer import FileLayout, Snapshot
from torsh_runtime.elastic.memory import SLOTS, CommitMemory, Slot
from torsh_runtime.errors import CheckpointError
from torsh_runtime.layout import Piece
from torsh_runtime.parallel.state import contents_of, restore

Bytes = NDArray[np.uint8]
Key = tuple[int, int]
"""Of a commit: its sequence number, and a token that no other has."""


class Commits:
    """Of one training. All ranks make the same calls in the same order."""

    def __init__(self, ranks: Ranks, environ: Mapping[str, str] = os.environ) -> None:
        self._ranks = ranks
        self._memory = CommitMemory.of_agent(environ)
        node = environ.get("GROUP_RANK", "0")
        self._planner = Planner(ranks, self._make, SLOTS, node)
        self._sequence = 0
        """Of the last commit."""

    @property
    def are_kept(self) -> bool:
        """Whether there is an agent that keeps them."""
        return self._memory is not None

    def commit(self, state: Mapping[str, Any]) -> None:
        """Keep the state as it is. When this returns on one rank, all have kept it."""
        if self._memory is None:
            return
        sequence = self._sequence + 1
        slot = sequence % SLOTS
        self._memory.begin(slot)
        save = self._planner.begin(sequence, state, async_op=False)
        layout = save.snapshot.layout
        manifest = Manifest(
            sequence,
            len(save.layouts),
            0.0,
            tensors_of([layout]),
            save.contents.values,
            save.contents.aliases,
            {layout.name: StoredFile(layout.num_bytes, layout.num_bytes, (0,))},
        )
        self._memory.finish(slot, sequence, save.token, manifest.to_bytes(), layout.num_bytes)
        self._ranks.numbers([sequence])
        self._sequence = sequence

    def restore(self, state: Mapping[str, Any]) -> dict[str, Any] | None:
        """Give the state what the last commit kept that enough ranks still have, and return the
        plain values; None if there is none. Ranks whose node has none get it from one that has,
        which takes a state that every rank has whole. CheckpointError if it does not fit.
        """
        found = _whole_commits([] if self._memory is None else self._memory.slots())
        told = self._commits_of_all(found)
        everyone, anyone = set.intersection(*told), set.union(*told)
        if anyone - everyone and self._all(_is_whole(state, self._ranks.rank)):
            newest = max(anyone)
        else:
            newest = max(everyone, default=(0, 0))
        if not newest[0]:
            return None
        source = found.get(newest)
        if newest not in everyone:
            source = self._from_one(source, next(r for r, has in enumerate(told) if newest in has))
        values = self._restore(state, source)
        self._sequence = newest[0]
        return values

    def _make(self, layout: FileLayout, slot: int) -> Snapshot:
        if self._memory is None:
            raise CheckpointError("there is no agent that keeps commits")
        return Snapshot(layout, self._memory.make(slot, layout.num_bytes))

    def _commits_of_all(self, own: Iterable[Key]) -> list[set[Key]]:
        """Which whole commits each rank's node has."""
        padded = ([*own] + [(0, 0)] * SLOTS)[:SLOTS]
        rows = self._ranks.numbers([number for key in padded for number in key])
        return [{(row[i], row[i + 1]) for i in range(0, len(row), 2) if row[i]} for row in rows]

    def _all(self, own: bool) -> bool:
        return all(each for (each,) in self._ranks.numbers([int(own)]))

    def _from_one(self, source: PieceReader | None, rank: int) -> PieceReader:
        """What the rank has, whole, on all."""
        text, content = "", np.empty(0, np.uint8)
        if source is not None and self._ranks.rank == rank:
            text, content = _packed(source)
        text = self._ranks.texts(text)[rank]
        return _unpacked(text, self._ranks.broadcast(content, rank))

    def _restore(self, state: Mapping[str, Any], source: PieceReader | None) -> dict[str, Any]:
        """CheckpointError on all ranks if one of them cannot."""
        values, error = dict[str, Any](), ""
        try:
            if source is not None:
                values = restore(state, source, self._ranks.rank)
        except CheckpointError as reason:
            error = str(reason)
        for rank, failed in enumerate(self._ranks.texts(error)):
            if failed:
                raise CheckpointError(f"rank {rank} cannot go on from the last commit: {failed}")
        return values


class _Kept(PieceReader):
    """Contents in memory."""

    def __init__(self, manifest: Manifest, files: Mapping[str, Bytes]) -> None:
        self.manifest, self._files = manifest, files
        self.where = f"commit {manifest.step}"

    def read_file(self, file: str, start: int, target: Bytes) -> None:
        """See PieceReader."""
        target[:] = self._files[file][start : start + target.size]


def _whole_commits(slots: list[Slot]) -> dict[Key, PieceReader]:
    """Those of which all ranks of this node that took part have left their part."""
    parts: dict[Key, list[tuple[Manifest, Bytes]]] = {}
    for slot in slots:
        manifest = Manifest.from_bytes(slot.told)
        parts.setdefault((slot.sequence, slot.token), []).append((manifest, slot.content))
    return {key: _joined(own) for key, own in parts.items() if len(own) == own[0][0].world_size}


def _joined(parts: list[tuple[Manifest, Bytes]]) -> PieceReader:
    tensors: dict[str, StoredTensor] = {}
    values: dict[str, Any] = {}
    files: dict[str, Bytes] = {}
    for manifest, content in sorted(parts, key=lambda each: min(each[0].files), reverse=True):
        values |= manifest.values
        files[next(iter(manifest.files))] = content
        for name, tensor in manifest.tensors.items():
            before = tensors[name].pieces if name in tensors else ()
            tensors[name] = StoredTensor(tensor.dtype, tensor.shape, (*before, *tensor.pieces))
    first = parts[0][0]
    whole = Manifest(first.step, first.world_size, 0.0, tensors, values, first.aliases, {})
    return _Kept(whole, files)


def _is_whole(state: Mapping[str, Any], rank: int) -> bool:
    return all(tensor.piece.is_whole for tensor in contents_of(state, rank).tensors.values())


def _packed(source: PieceReader) -> tuple[str, Bytes]:
    """All of it as one manifest and one file."""
    manifest = source.manifest
    held = [
        Held(name, each.dtype, Piece.whole(each.shape)) for name, each in manifest.tensors.items()
    ]
    layout = FileLayout.of(0, held)
    content = np.zeros(layout.num_bytes, np.uint8)
    for each, start in layout.starts.items():
        values = source.read_bytes(each.name)
        content[start : start + values.size] = values
    told = Manifest(
        manifest.step,
        1,
        0.0,
        tensors_of([layout]),
        manifest.values,
        manifest.aliases,
        {layout.name: StoredFile(layout.num_bytes, layout.num_bytes, (0,))},
    )
    return told.to_bytes().decode(), content


def _unpacked(text: str, content: Bytes) -> PieceReader:
    manifest = Manifest.from_bytes(text.encode())
    return _Kept(manifest, {next(iter(manifest.files)): content})
