"""Writes one rank's file of a checkpoint."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from torsh_runtime.arrays.copying import Copying
from torsh_runtime.checkpoint.directory import create, opened
from torsh_runtime.checkpoint.manifest import StoredFile, StoredPiece
from torsh_runtime.checkpoint.plan import Held
from torsh_runtime.checkpoint.tensor_file import lay_out
from torsh_runtime.layout import Piece, ShardedTensor

BLOCK = 1 << 20
"""Bytes per checksum, and so the least that is read of a file."""


@dataclass(frozen=True)
class FileLayout:
    """Describes what is stored where in a rank's file."""

    name: str
    header: bytes
    starts: Mapping[Held, int]
    num_bytes: int

    @classmethod
    def of(cls, rank: int, share: Sequence[Held], kind: str = "safetensors") -> FileLayout:
        """Lay out the pieces that the rank writes; `kind` is the suffix of the file's name."""
        named: dict[str, Held] = {}
        for each in share:
            name = _name(each)
            while name in named:  # another tensor already has this name
                name += "'"
            named[name] = each
        tensors = ((name, each.dtype, _shape(each.piece)) for name, each in named.items())
        header, stored, size = lay_out(tensors, {"format": "pt", "rank": str(rank)})
        starts = {named[name]: each.start for name, each in stored.items()}
        return cls(f"rank-{rank:05d}.{kind}", header, starts, size)

    def stored(self) -> dict[Held, StoredPiece]:
        """Return the pieces as a manifest lists them."""
        return {
            each: StoredPiece(self.name, start, each.piece) for each, start in self.starts.items()
        }


class Snapshot:
    """Holds a rank's file in memory, which the next save with the same layout uses again."""

    def __init__(self, layout: FileLayout, memory: NDArray[np.uint8] | None = None) -> None:
        """Write the header to `memory`, which has as many bytes as the file; it is allocated if
        None."""
        self.layout = layout
        self._bytes = _anonymous(layout.num_bytes) if memory is None else memory
        self._copying = Copying(self._bytes)
        self._bytes[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)

    def take(self, tensors: Mapping[str, ShardedTensor], itemsizes: Mapping[str, int]) -> None:
        """Copy the current values of the tensors."""
        self._copying.take(self.copies(tensors, itemsizes))

    def copies(
        self, tensors: Mapping[str, ShardedTensor], itemsizes: Mapping[str, int]
    ) -> Iterator[tuple[Any, NDArray[np.uint8]]]:
        """Yield the values of the tensors, each with where it is to be copied."""
        for held, start in self.layout.starts.items():
            end = start + held.piece.size * itemsizes[held.dtype]
            yield tensors[held.name].values, self._bytes[start:end]

    def write(self, directory: Path) -> StoredFile:
        """Write the file to a directory and flush it to the disk.

        Raises OSError if that fails, also if a link has replaced the directory.
        """
        with opened(directory, os.O_DIRECTORY | os.O_NOFOLLOW) as folder:
            descriptor = create(folder, self.layout.name)
        try:
            checksums = [self._write_block(descriptor, start) for start in self._starts()]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return StoredFile(self.layout.num_bytes, BLOCK, tuple(checksums))

    def _starts(self) -> range:
        return range(0, self.layout.num_bytes, BLOCK)

    def _write_block(self, descriptor: int, start: int) -> int:
        block = self._bytes[start : start + BLOCK]
        done = 0
        while done < block.size:
            done += os.write(descriptor, block.data[done:])
        return xxh3_64_intdigest(block.data)


def _anonymous(num_bytes: int) -> NDArray[np.uint8]:
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _name(held: Held) -> str:
    """Return the name in the file: the tensor's own if the piece is the whole tensor."""
    return held.name if held.piece.is_whole else f"{held.name}{held.piece.label}"


def _shape(piece: Piece) -> tuple[int, ...]:
    return piece.shape if piece.is_box else (piece.size,)
