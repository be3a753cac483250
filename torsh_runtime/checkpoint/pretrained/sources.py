"""Reads parts of tensors from files of weights."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from torsh_runtime.checkpoint.pretrained.lazy import Lazy, Spans, selected
from torsh_runtime.checkpoint.tensor_file import Stored, read_header
from torsh_runtime.errors import CheckpointError


class WeightFiles:
    """Reads files in safetensors' format. Attributes: num_bytes (bytes of tensors read so far)."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Map the files into memory. Raises CheckpointError for a file that has another format."""
        self.num_bytes = 0
        self.tensors: dict[str, Lazy] = {}
        """The tensors by name; they can be read until close()."""
        self._memories: list[mmap.mmap] = []
        for each in files:
            self._open(each)

    def close(self) -> None:
        """Close the files. Their tensors cannot be read afterwards."""
        self.tensors = {}
        for each in self._memories:
            each.close()

    def _open(self, file: Path) -> None:
        try:
            with file.open("rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                memory = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY)
            self._memories.append(memory)
            stored = read_header(lambda start, length: memory[start : start + length], size)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from None
        except CheckpointError as error:
            raise CheckpointError(f"{file}: {error}") from None
        for name, place in stored.items():
            self.tensors[name] = self._lazy(name, place, memory)

    def _lazy(self, name: str, place: Stored, memory: mmap.mmap) -> Lazy:
        dtype: torch.dtype = getattr(torch, place.dtype)

        def pull(spans: Spans) -> torch.Tensor:
            if not place.num_bytes:
                return torch.empty([sum(b - a for a, b in own) for own in spans], dtype=dtype)
            held = torch.frombuffer(
                memory, dtype=torch.uint8, count=place.num_bytes, offset=place.start
            )
            if place.start % dtype.itemsize:
                held = held.clone()
            found = selected(held.view(dtype).view(place.shape), spans).clone()
            self.num_bytes += found.nbytes
            memory.madvise(mmap.MADV_DONTNEED)  # the file's pages need not count as this process's
            return found

        return Lazy.of(place.shape, dtype, name, pull)
