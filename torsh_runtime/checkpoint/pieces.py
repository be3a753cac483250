"""Reads pieces of tensors out of the pieces in which they were kept."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.arrays.raw import cast_in, copy_in, dtype_name, memory_of
from torsh_runtime.checkpoint.manifest import Manifest, StoredTensor
from torsh_runtime.checkpoint.tensor_file import FLOATING, ITEMSIZES
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.layout import Piece, ShardedTensor, cover
from torsh_runtime.parallel.state.contents import read_whole

Bytes = NDArray[np.uint8]


class DamagedCheckpoint(CheckpointError):
    """Its files are not what its manifest says, or it has none."""


class Span(NamedTuple):
    """Bytes of a file, and where in a piece they belong."""

    file: str
    start: int
    first: int
    last: int


class Landing:
    """Where the bytes of a piece are read to: its target's own memory where that can be."""

    def __init__(self, target: ShardedTensor, dtype: str) -> None:
        """dtype: of the bytes."""
        self._values, self._dtype = target.values, dtype
        is_cast = dtype != dtype_name(target.values)
        in_place = None if is_cast else memory_of(target.values)
        size = target.piece.size * ITEMSIZES[dtype]
        self._is_in_place = in_place is not None
        self.memory = np.empty(size, np.uint8) if in_place is None else in_place

    def finish(self) -> None:
        """All bytes are there."""
        if self._dtype != dtype_name(self._values):
            cast_in(self._values, self.memory, self._dtype)
        elif not self._is_in_place:
            copy_in(self._values, self.memory)


class PieceReader(ABC):
    """What a manifest tells of, wherever that is: a parallel.state.Source."""

    manifest: Manifest
    where: str
    """For errors."""
    advice = "`python -m torsh_runtime.checkpoint ls --tensors` shows which there are"
    """For errors: how to learn which tensors there are."""

    @abstractmethod
    def read_file(self, file: str, start: int, target: Bytes) -> None:
        """Fill the target with a file's bytes from `start` on."""

    @property
    def values(self) -> Mapping[str, Any]:
        """Plain values, by name."""
        return self.manifest.values

    def names(self, prefix: str) -> list[str]:
        """Of all tensors whose names begin so."""
        first = bisect_left(self._sorted, prefix)
        behind = (self._sorted[at] for at in range(first, len(self._sorted)))
        return list(takewhile(lambda name: name.startswith(prefix), behind))

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self.manifest.tensors)

    def kind(self, name: str) -> tuple[str, tuple[int, ...]]:
        """The dtype and shape of a whole tensor. CheckpointError if there is none."""
        found = self._tensor(name)
        return found.dtype, found.shape

    def read(self, name: str, target: ShardedTensor) -> None:
        """Write this piece of a tensor to the target's values, cast to their dtype if both are
        floating.

        CheckpointError for a tensor that is not there or of another shape or dtype,
        DamagedCheckpoint if its bytes are not those that were written.
        """
        self.check(name, target)
        landing = Landing(target, self._tensor(name).dtype)
        for span in self.spans(name, target.piece):
            self.read_file(span.file, span.start, landing.memory[span.first : span.last])
        landing.finish()

    def whole(self, name: str, framework: str) -> Any:
        """All of a tensor, in memory of its own."""
        return read_whole(self, name, framework)

    def read_bytes(self, name: str) -> Bytes:
        """Those of a whole tensor, row-major, of whatever dtype."""
        stored = self._tensor(name)
        whole = Piece.whole(stored.shape)
        memory = np.empty(whole.size * ITEMSIZES[stored.dtype], np.uint8)
        for span in self.spans(name, whole):
            self.read_file(span.file, span.start, memory[span.first : span.last])
        return memory

    def check(self, name: str, target: ShardedTensor) -> None:
        """CheckpointError if the tensor is not there, or cannot be read into this target."""
        stored, wanted = self._tensor(name), target.piece
        dtype = dtype_name(target.values)
        is_fit = stored.dtype == dtype or {stored.dtype, dtype} <= FLOATING
        if stored.shape != wanted.global_shape or not is_fit:
            raise CheckpointError(
                f"{self.where}: {name!r} is {stored.dtype} of shape {stored.shape} there, and "
                f"{dtype} of shape {wanted.global_shape} here"
            )
        if math.prod(target.values.shape) != wanted.size:
            raise CheckpointError(
                f"{name!r}: values of shape {tuple(target.values.shape)} are no piece of "
                f"{wanted.size} elements"
            )

    def spans(self, name: str, wanted: Piece) -> list[Span]:
        """Where its bytes lie. DamagedCheckpoint if some of them lie nowhere."""
        stored = self._tensor(name)
        width = ITEMSIZES[stored.dtype]
        try:
            return [
                Span(part.file, part.start + at * width, to * width, (to + length) * width)
                for place, (to, at, length) in cover(wanted, [p.piece for p in stored.pieces])
                for part in [stored.pieces[place]]
            ]
        except ConfigError as error:
            raise DamagedCheckpoint(f"{self.where}: {name!r}: {error}") from None

    def _tensor(self, name: str) -> StoredTensor:
        name = self.manifest.aliases.get(name, name)
        try:
            return self.manifest.tensors[name]
        except KeyError:
            raise CheckpointError(
                f"{self.where}: there is no tensor {name!r} in it; {self.advice}"
            ) from None
