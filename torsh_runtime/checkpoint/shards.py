"""Writes files in safetensors' format tensor by tensor, named as transformers names them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from torsh_runtime.arrays.raw import copy_out, memory_of
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES, Stored, check_dtype, lay_out
from torsh_runtime.errors import ConfigError

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


class Kind(NamedTuple):
    """Describes a tensor that is to be written."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Return the size of the tensor in bytes."""
        return math.prod(self.shape) * ITEMSIZES[self.dtype]


def size_of(given: int | str) -> int:
    """Return bytes for a number or a text such as "5GB". Raises ConfigError for other texts."""
    if isinstance(given, int):
        return given
    found = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]I?B)\s*", given, re.IGNORECASE)
    if found is None:
        raise ConfigError(f"max_shard_size is bytes, or a text such as '5GB', not {given!r}")
    return int(float(found[1]) * _UNITS[found[2].upper()])


class ShardedFiles:
    """Plans a model's files and writes them."""

    def __init__(self, kinds: Mapping[str, Kind], largest: int, variant: str | None) -> None:
        """Plan files of at most `largest` bytes, unless a single tensor has more.

        kinds: the tensors in order, by name. Raises CheckpointError for dtypes that safetensors
        lacks.
        """
        for name, kind in kinds.items():
            check_dtype(name, kind.dtype)
        self._variant = f".{variant}" if variant else ""
        self._kinds, self.num_bytes = kinds, sum(each.num_bytes for each in kinds.values())
        self._open: dict[str, BinaryIO] = {}
        self._places: dict[str, tuple[str, Stored]] = {}
        self._shards = self._divided(largest)
        count = len(self._shards)
        self.names = [
            f"model{f'-{at:05d}-of-{count:05d}' if count > 1 else ''}{self._variant}.safetensors"
            for at in range(1, count + 1)
        ]

    @property
    def index(self) -> str:
        """Return the name of the index file, which is written if there are several files."""
        return f"model.safetensors.index{self._variant}.json"

    def _divided(self, largest: int) -> list[list[str]]:
        """Return the names by file. A tensor above the limit gets a file of its own before the
        current one."""
        full: list[list[str]] = []
        rest: list[str] = []
        size = 0
        for name, kind in self._kinds.items():
            if kind.num_bytes > largest:
                full.append([name])
                continue
            if size + kind.num_bytes > largest:
                full.append(rest)
                rest, size = [], 0
            rest.append(name)
            size += kind.num_bytes
        return [*full, rest] if rest else full

    def create(self, folder: Path) -> None:
        """Create the files in `folder`, with headers but without tensors."""
        for file, names in zip(self.names, self._shards, strict=True):
            kinds = ((name, *self._kinds[name]) for name in names)
            header, stored, size = lay_out(kinds, {"format": "pt"})
            opened = self._open[file] = (folder / file).open("xb")
            opened.truncate(size)
            opened.write(header)
            self._places |= {name: (file, place) for name, place in stored.items()}

    def write(self, name: str, values: Any) -> None:
        """Write one tensor to its place."""
        file, place = self._places[name]
        memory = memory_of(values)
        if memory is None:
            memory = np.empty(place.num_bytes, np.uint8)
            copy_out(values, memory)
        self._open[file].seek(place.start)
        self._open[file].write(memory.data)

    def finish(self, folder: Path, parameters: int) -> None:
        """Flush the files to the disk and write the index. Call it when all tensors are written."""
        for opened in self._open.values():
            opened.flush()
            os.fsync(opened.fileno())
        self.close()
        if len(self.names) > 1:
            where = {name: self._places[name][0] for name in sorted(self._places)}
            told = {"total_parameters": parameters, "total_size": self.num_bytes}
            text = json.dumps({"metadata": told, "weight_map": where}, indent=2, sort_keys=True)
            (folder / self.index).write_text(text + "\n")

    def close(self) -> None:
        """Close all open files."""
        for opened in self._open.values():
            opened.close()
        self._open = {}

    def stale(self, folder: Path) -> list[Path]:
        """Return files of earlier saves that are not replaced and would be read instead."""
        kept = {*self.names, *([self.index] if len(self.names) > 1 else [])}
        pattern = re.compile(
            rf"model(-\d{{5}}-of-\d{{5}})?{re.escape(self._variant)}\.safetensors"
            rf"|model\.safetensors\.index{re.escape(self._variant)}\.json"
        )
        there = folder.iterdir()
        return [each for each in there if pattern.fullmatch(each.name) and each.name not in kept]
