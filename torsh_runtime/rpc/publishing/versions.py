"""Versions that a reader holds and reads arrays from: in a slot of this node, or at a writer
elsewhere, from which only the wanted pieces are fetched."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from torsh_runtime.arrays.raw import empty, framework_of
from torsh_runtime.checkpoint.manifest import Manifest
from torsh_runtime.checkpoint.pieces import Bytes, PieceReader
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.numpy_or_cupy import array_module, bfloat16
from torsh_runtime.parallel.layouts import cut
from torsh_runtime.rpc.publishing.description import paths

Wanted = tuple[str, Piece, str]
"""The name of an array, its piece, and the framework of the result, "numpy" or "torch"."""


class Version(PieceReader):
    """A version, which is kept as long as this object and the arrays in its memory."""

    def __init__(self, writer: str, number: int, manifest: Manifest, tree: Any) -> None:
        self.number, self.manifest, self.tree = number, manifest, tree
        self.where = f"version {number} of {writer}"
        self.advice = "iterate over the version to see what it has"

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """Return by name the values that are no arrays, and the mappings that arrays are in."""
        return dict(paths(self.tree))

    def read_file(self, file: str, start: int, target: Bytes) -> None:
        """Raise NotImplementedError: arrays are views of a slot, or are fetched by calls."""
        raise NotImplementedError

    def read(self, name: str, target: ShardedTensor) -> None:
        """Write this piece of an array to the target's values, cast to their dtype if both are
        floating. Raises CheckpointError if it does not fit."""
        self.check(name, target)
        self.read_all([(name, target)])

    def whole(self, name: str, framework: str) -> Any:
        """Return a whole array, as piece() does."""
        shape = self._tensor(name).shape
        return self.piece((name, Piece.whole(shape), framework)).reshape(shape)

    def read_all(self, reads: Sequence[tuple[str, ShardedTensor]]) -> None:
        """Carry out several reads that have been checked. What has to be fetched is fetched
        together."""
        wanted = [(name, to.piece, framework_of(to.values)) for name, to in reads]
        for (_, target), found in zip(reads, self._sources(wanted), strict=True):
            assign(target.values, found)

    def piece(self, wanted: Wanted) -> Any:
        """Return one piece, as pieces() does."""
        return next(iter(self.pieces([wanted])))

    @abstractmethod
    def pieces(self, wanted: Sequence[Wanted]) -> Any:
        """Yield the pieces, one after another, to be read only. They have the shape of their box,
        or are flat where they are no box."""

    @abstractmethod
    def close(self) -> None:
        """Release the version."""

    def _sources(self, wanted: Sequence[Wanted]) -> Any:
        """Yield what pieces() does, for arrays that are copied at once."""
        return self.pieces(wanted)


class SlotVersion(Version):
    """A version in a slot. Arrays are views of it, and it is held until the last of them is
    gone."""

    def __init__(self, writer: str, lease: Any, manifest: Manifest, tree: Any) -> None:
        super().__init__(writer, lease.version, manifest, tree)
        self._lease = lease
        self._memories: dict[tuple[str, bool], Any] = {}

    def pieces(self, wanted: Sequence[Wanted]) -> Any:
        """Yield the pieces as views of the slot where they are contiguous."""
        for name, piece, framework in wanted:
            yield piece_of(self._view(name, framework, is_own=framework == "torch"), piece)

    def whole(self, name: str, framework: str) -> Any:
        """Return a whole array as a view of the slot."""
        return self._view(name, framework, is_own=framework == "torch")

    def close(self) -> None:
        """Release the slot, which is held until the last array is gone."""
        self._memories.clear()
        self._lease = None

    def _sources(self, wanted: Sequence[Wanted]) -> Any:
        for name, piece, framework in wanted:
            yield piece_of(self._view(name, framework, is_own=False), piece)

    def _view(self, name: str, framework: str, *, is_own: bool) -> Any:
        stored = self._tensor(name)
        start = stored.pieces[0].start
        end = start + math.prod(stored.shape) * ITEMSIZES[stored.dtype]
        key = framework, is_own
        if key not in self._memories:
            self._memories[key] = self._memory(framework, is_own)
        content = self._memories[key][start:end]
        return _elements(content, framework, stored.dtype).reshape(stored.shape)

    def _memory(self, framework: str, is_own: bool) -> Any:
        """Return all arrays of the slot as bytes. Tensors cannot be made read-only, so programs get
        private ones: see Weights."""
        if framework == "numpy":
            return self._lease.array(is_own=False, is_writable=False)
        import torch

        return torch.from_numpy(self._lease.array(is_own=is_own, is_writable=True))


class RemoteVersion(Version):
    """A version that a writer of another node keeps for this reader."""

    def __init__(
        self,
        writer: str,
        number: int,
        manifest: Manifest,
        tree: Any,
        fetch: Callable[[Sequence[tuple[str, Piece]]], list[Bytes]],
        release: Callable[[], None],
    ) -> None:
        super().__init__(writer, number, manifest, tree)
        self._fetch, self._release = fetch, release
        self._is_held = True

    def pieces(self, wanted: Sequence[Wanted]) -> Any:
        """Fetch the pieces from the writer, in batches, and yield them."""
        for batch in self._batches(wanted):
            found = self._fetch([(name, piece) for name, piece, _ in batch])
            for (name, piece, framework), content in zip(batch, found, strict=True):
                array = self._array(content, framework, self.kind(name)[0])
                yield array.reshape(piece.shape) if piece.is_box else array

    def _array(self, content: Bytes, framework: str, dtype: str) -> Any:
        if framework == "numpy":
            content = content.view()
            content.flags.writeable = False
            return _elements(content, framework, dtype)
        import torch

        own = content if content.flags.writeable else content.copy()
        return _elements(torch.from_numpy(own), framework, dtype)

    def close(self) -> None:
        """Let the writer release the version."""
        if self._is_held:
            self._is_held = False
            self._release()

    def _batches(self, wanted: Sequence[Wanted]) -> Any:
        batch: list[Wanted] = []
        room = _BATCH
        for each in wanted:
            size = each[1].size * ITEMSIZES[self.kind(each[0])[0]]
            if batch and size > room:
                yield batch
                batch, room = [], _BATCH
            batch.append(each)
            room -= size
        if batch:
            yield batch


_BATCH = 256 << 20
"""Bytes that one call fetches, unless a single array has more."""


def piece_of(whole: Any, piece: Piece) -> Any:
    """Return the piece's elements of a whole array: a view where they are contiguous, else a
    copy."""
    if piece.is_box:
        return whole if piece.is_whole and not piece.spans else cut(whole, piece)
    spans = [piece.spans_of(dim) for dim in range(len(piece.shape))]
    box = cut(whole, Piece.of_spans(piece.global_shape, spans))
    return box.reshape(-1)[piece.start : piece.end]


def assign(values: Any, found: Any) -> None:
    """Write an array's elements into another array of the same number of elements, cast to its
    dtype."""
    shaped = found.reshape(tuple(values.shape))
    if framework_of(values) == "torch":
        values.detach().copy_(shaped)
    else:
        values[...] = array_module(values).asarray(shaped)


def raw_pieces(lease: Any, manifest: Manifest, wanted: Sequence[tuple[str, Piece]]) -> list[Bytes]:
    """Return the bytes of pieces of a version, which is held until all of them are gone."""
    memory, found = lease.array(is_own=False, is_writable=True), []  # as the reader's will be
    for name, piece in wanted:
        stored = manifest.tensors[name]
        width, start = ITEMSIZES[stored.dtype], stored.pieces[0].start
        end = start + math.prod(stored.shape) * width
        whole = memory[start:end].view(f"V{width}").reshape(stored.shape)
        part = np.ascontiguousarray(piece_of(whole, piece)).reshape(-1)
        found.append(part.view(np.uint8))
    return found


def host_framework(framework: str) -> str:
    """Return the framework that an array was published from, or "numpy" if that is not
    installed."""
    if framework == "torch":
        try:
            import torch  # noqa: F401
        except ImportError:
            return "numpy"
    return framework


def _elements(content: Any, framework: str, dtype: str) -> Any:
    """Return bytes as elements, in place. torch cannot view an empty buffer so."""
    if framework == "torch" and not len(content):
        return empty("torch", (0,), dtype)
    return content.view(_dtype(framework, dtype))


def _dtype(framework: str, name: str) -> Any:
    if framework == "torch":
        import torch

        return getattr(torch, name)
    return bfloat16() if name == "bfloat16" else np.dtype(name)
