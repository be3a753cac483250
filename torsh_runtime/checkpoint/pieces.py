"""Reads any piece of a tensor from the pieces in which it was stored."""

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
    """Reports that a checkpoint's files do not match its manifest, or that it has no manifest.

    Example:
        ```python
        try:
            with tr.checkpoint.CheckpointReader(path) as reader:
                reader.verify()
        except tr.checkpoint.DamagedCheckpoint as error:
            print(error)
        ```
    """


class Span(NamedTuple):
    """Represents a range of bytes in a file, and where in a piece they belong."""

    file: str
    start: int
    first: int
    last: int


class Landing:
    """Receives the bytes of a piece, in the target's own memory where possible."""

    def __init__(self, target: ShardedTensor, dtype: str) -> None:
        """Prepare memory for the bytes of `target.piece`, which have the dtype `dtype`."""
        self._values, self._dtype = target.values, dtype
        is_cast = dtype != dtype_name(target.values)
        in_place = None if is_cast else memory_of(target.values)
        size = target.piece.size * ITEMSIZES[dtype]
        self._is_in_place = in_place is not None
        self.memory = np.empty(size, np.uint8) if in_place is None else in_place

    def finish(self) -> None:
        """Move the bytes to the target, cast if dtypes differ. Call it when all bytes have been
        read."""
        if self._dtype != dtype_name(self._values):
            cast_in(self._values, self.memory, self._dtype)
        elif not self._is_in_place:
            copy_in(self._values, self.memory)


class PieceReader(ABC):
    """Reads the tensors that a manifest lists, from any storage; a parallel.state.Source."""

    manifest: Manifest
    where: str
    """Name of the storage, for error messages."""
    advice = "`python -m torsh_runtime.checkpoint ls --tensors` shows which there are"
    """Advice on listing the tensors, for error messages."""

    @abstractmethod
    def read_file(self, file: str, start: int, target: Bytes) -> None:
        """Fill the target with a file's bytes from `start` on."""

    @property
    def values(self) -> Mapping[str, Any]:
        """Return the plain values, by name."""
        return self.manifest.values

    def names(self, prefix: str) -> list[str]:
        """Return the sorted names of all tensors that begin with `prefix`."""
        first = bisect_left(self._sorted, prefix)
        behind = (self._sorted[at] for at in range(first, len(self._sorted)))
        return list(takewhile(lambda name: name.startswith(prefix), behind))

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self.manifest.tensors)

    def kind(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return dtype and shape of a whole tensor. Raises CheckpointError if there is none."""
        found = self._tensor(name)
        return found.dtype, found.shape

    def read(self, name: str, target: ShardedTensor) -> None:
        """Read the target's piece of a tensor into its values, cast to their dtype if both are
        floating.

        Raises CheckpointError if the tensor does not exist or has a different shape or dtype, and
        DamagedCheckpoint if its bytes are not the ones that were written.
        """
        self.check(name, target)
        landing = Landing(target, self._tensor(name).dtype)
        for span in self.spans(name, target.piece):
            self.read_file(span.file, span.start, landing.memory[span.first : span.last])
        landing.finish()

    def whole(self, name: str, framework: str) -> Any:
        """Return a whole tensor in new memory, as an array of `framework`."""
        return read_whole(self, name, framework)

    def read_bytes(self, name: str) -> Bytes:
        """Return the bytes of a whole tensor of any dtype, in row-major order."""
        stored = self._tensor(name)
        whole = Piece.whole(stored.shape)
        memory = np.empty(whole.size * ITEMSIZES[stored.dtype], np.uint8)
        for span in self.spans(name, whole):
            self.read_file(span.file, span.start, memory[span.first : span.last])
        return memory

    def check(self, name: str, target: ShardedTensor) -> None:
        """Raise CheckpointError unless the tensor exists and can be read into this target."""
        check_fits(self.where, name, self.kind(name), target)

    def spans(self, name: str, wanted: Piece) -> list[Span]:
        """Return where the bytes of a piece are stored. Raises DamagedCheckpoint if some are
        missing."""
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


def check_fits(
    where: str, name: str, kind: tuple[str, tuple[int, ...]], target: ShardedTensor
) -> None:
    """Raise CheckpointError unless a tensor of this dtype and shape can be read into the target."""
    stored, shape = kind
    dtype, wanted = dtype_name(target.values), target.piece
    is_fit = stored == dtype or {stored, dtype} <= FLOATING
    if shape != wanted.global_shape or not is_fit:
        raise CheckpointError(
            f"{where}: {name!r} is {stored} of shape {shape} there, and {dtype} of shape "
            f"{wanted.global_shape} here"
        )
    if math.prod(target.values.shape) != wanted.size:
        raise CheckpointError(
            f"{name!r}: values of shape {tuple(target.values.shape)} are no piece of "
            f"{wanted.size} elements"
        )
