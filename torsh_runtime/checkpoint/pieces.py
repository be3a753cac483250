"""Reads pieces of tensors out of the pieces in which they were kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.arrays.raw import copy_in, dtype_name, memory_of
from torsh_runtime.checkpoint.manifest import Manifest, StoredTensor
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES
from torsh_runtime.errors import CheckpointError
from torsh_runtime.layout import Piece, ShardedTensor, overlaps

Bytes = NDArray[np.uint8]


class DamagedCheckpoint(CheckpointError):
    """Its files are not what its manifest says, or it has none."""


class PieceReader(ABC):
    """What a manifest tells of, wherever that is: a parallel.state.Source."""

    manifest: Manifest
    where: str
    """For errors."""

    @abstractmethod
    def read_file(self, file: str, start: int, target: Bytes) -> None:
        """Fill the target with a file's bytes from `start` on."""

    @property
    def values(self) -> Mapping[str, Any]:
        """Plain values, by name."""
        return self.manifest.values

    def names(self, prefix: str) -> list[str]:
        """Of all tensors whose names begin so."""
        return [name for name in self.manifest.tensors if name.startswith(prefix)]

    def kind(self, name: str) -> tuple[str, tuple[int, ...]]:
        """The dtype and shape of a whole tensor. CheckpointError if there is none."""
        found = self._tensor(name)
        return found.dtype, found.shape

    def read(self, name: str, target: ShardedTensor) -> None:
        """Write this piece of a tensor to the target's values.

        CheckpointError for a tensor that is not there or of another shape or dtype,
        DamagedCheckpoint if its bytes are not those that were written.
        """
        stored = self._tensor(name)
        wanted = target.piece
        if (stored.shape, stored.dtype) != (wanted.global_shape, dtype_name(target.values)):
            raise CheckpointError(
                f"{self.where}: {name!r} is {stored.dtype} of shape {stored.shape} there, and "
                f"{dtype_name(target.values)} of shape {wanted.global_shape} here"
            )
        in_place = memory_of(target.values)
        size = wanted.size * ITEMSIZES[stored.dtype]
        memory = np.empty(size, np.uint8) if in_place is None else in_place
        if memory.size != size:
            raise CheckpointError(f"{name!r}: {memory.size} bytes are no piece of {size}")
        self._fill(name, stored, wanted, memory)
        if in_place is None:
            copy_in(target.values, memory)

    def read_bytes(self, name: str) -> Bytes:
        """Those of a whole tensor, row-major, of whatever dtype."""
        stored = self._tensor(name)
        whole = Piece.whole(stored.shape)
        memory = np.empty(whole.size * ITEMSIZES[stored.dtype], np.uint8)
        self._fill(name, stored, whole, memory)
        return memory

    def _fill(self, name: str, stored: StoredTensor, wanted: Piece, memory: Bytes) -> None:
        width = ITEMSIZES[stored.dtype]
        missing = wanted.size
        for part in stored.pieces:
            for ours, theirs, length in overlaps(wanted, part.piece):
                target = memory[ours * width : (ours + length) * width]
                self.read_file(part.file, part.start + theirs * width, target)
                missing -= length
        if missing > 0:
            raise DamagedCheckpoint(f"{self.where}: {missing} elements of {name!r} are nowhere")

    def _tensor(self, name: str) -> StoredTensor:
        name = self.manifest.aliases.get(name, name)
        try:
            return self.manifest.tensors[name]
        except KeyError:
            raise CheckpointError(
                f"{self.where}: there is no tensor {name!r} in it; `python -m "
                f"torsh_runtime.checkpoint ls --tensors` shows which there are"
            ) from None
