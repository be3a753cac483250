"""Describes which pieces of which tensors are stored where in a checkpoint's files."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torsh_runtime.checkpoint.tensor_file import ITEMSIZES, check_shape
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.layout import Piece

VERSION = 2
"""Version of manifests with pieces of several boxes, which the previous version cannot read."""
_BOXES = 1
NAME = "manifest.json"
_LATEST = 1 << 36
"""The latest accepted time, in seconds since 1970, that still converts to a date."""


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """Represents a piece of a tensor in a file."""

    file: str
    start: int
    """Offset of its first byte in the file."""
    piece: Piece


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Represents a whole tensor and the pieces it is stored in."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[StoredPiece, ...]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Represents a file of tensors with its checksums."""

    num_bytes: int
    block: int
    """Bytes per checksum; the last block may be shorter."""
    checksums: tuple[int, ...]
    """64-bit XXH3 of each block."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes everything in a checkpoint."""

    step: int
    world_size: int
    """Number of ranks that saved it."""
    time: float
    """Time of the save, in seconds since 1970."""
    tensors: Mapping[str, StoredTensor]
    values: Mapping[str, Any]
    aliases: Mapping[str, str]
    files: Mapping[str, StoredFile]

    @property
    def num_bytes(self) -> int:
        """Return the total size of all tensor files, in bytes."""
        return sum(each.num_bytes for each in self.files.values())

    def check_whole(self) -> None:
        """Check that all elements of all tensors are stored. Raises CheckpointError otherwise."""
        for name, tensor in self.tensors.items():
            if sum(each.piece.size for each in tensor.pieces) < math.prod(tensor.shape):
                raise CheckpointError(f"{NAME} has too few pieces of {name!r}")

    def to_bytes(self) -> bytes:
        """Return the contents of the manifest's file: a checksum and JSON."""
        pieces = [each.piece for tensor in self.tensors.values() for each in tensor.pieces]
        version = VERSION if any(piece.spans for piece in pieces) else _BOXES
        content = json.dumps({"version": version, **asdict(self)}).encode()
        return b"%08x\n" % zlib.crc32(content) + content

    @classmethod
    def from_bytes(cls, text: bytes) -> Manifest:
        """Parse a manifest's file.

        Raises CheckpointError if it is no manifest, is damaged, or has a later version.
        """
        checksum, _, content = text.partition(b"\n")
        if checksum != b"%08x" % zlib.crc32(content):
            raise CheckpointError(f"{NAME} is damaged: its checksum does not match its contents")
        try:
            told = json.loads(content)
            if told["version"] not in (_BOXES, VERSION):
                raise CheckpointError(
                    f"{NAME} is of version {told['version']!r}, this is version {VERSION}: load it "
                    f"with the torsh_runtime that wrote it"
                )
            return _manifest(told)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{NAME} makes no sense: {error!r}") from None


def _manifest(told: Mapping[str, Any]) -> Manifest:
    files = {name: _file(name, each) for name, each in told["files"].items()}
    tensors = {name: _tensor(each, files) for name, each in told["tensors"].items()}
    if not isinstance(told["values"], dict):
        raise ValueError("values that are no dict")
    aliases = {str(name): str(other) for name, other in told["aliases"].items()}
    step, world_size, time = _count(told["step"]), _count(told["world_size"]), told["time"]
    if not isinstance(time, int | float) or not 0 <= time < _LATEST:
        raise ValueError(f"{time!r} is no time")
    return Manifest(step, world_size, float(time), tensors, told["values"], aliases, files)


def _file(name: str, told: Mapping[str, Any]) -> StoredFile:
    if "/" in name or name.startswith(".") or not name.isprintable() or name == NAME:
        raise ValueError(f"a file of tensors cannot be named {name!r}")
    size, block = _count(told["num_bytes"]), _count(told["block"])
    checksums = tuple(map(_count, told["checksums"]))
    if block < 1 or len(checksums) != -(-size // block):
        raise ValueError(f"{len(checksums)} checksums for {size} bytes in blocks of {block}")
    return StoredFile(size, block, checksums)


def _tensor(told: Mapping[str, Any], files: Mapping[str, StoredFile]) -> StoredTensor:
    dtype, shape = told["dtype"], _counts(told["shape"])
    check_shape(shape, dtype)
    pieces = []
    for each in told["pieces"]:
        piece = piece_from(each["piece"])
        stored = StoredPiece(each["file"], _count(each["start"]), piece)
        end = stored.start + piece.size * ITEMSIZES[dtype]
        if piece.global_shape != shape or end > files[stored.file].num_bytes:
            raise ValueError(f"a piece of a tensor of shape {shape} that does not lie in its file")
        pieces.append(stored)
    return StoredTensor(dtype, shape, tuple(pieces))


def piece_from(told: Mapping[str, Any]) -> Piece:
    """Return the piece that asdict() made into `told`. Raises ValueError, KeyError or TypeError if
    it is no valid piece."""
    whole, offsets, shape = (_counts(told[each]) for each in ("global_shape", "offsets", "shape"))
    start, end = _count(told["start"]), _count(told["end"])
    spans = tuple(tuple(map(_span, own)) for own in told.get("spans", ()))
    try:
        return Piece(whole, offsets, shape, start, end, spans)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _span(told: Sequence[Any]) -> tuple[int, int]:
    first, last = _counts(told)
    return first, last


def _counts(told: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(_count, told))


def _count(told: Any) -> int:
    if type(told) is not int or not 0 <= told < 1 << 64:
        raise ValueError(f"{told!r} is no number of anything")
    return told
