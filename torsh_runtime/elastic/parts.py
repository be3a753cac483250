"""Assembles a whole commit from the parts in the agents' memory."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.checkpoint.manifest import Manifest, StoredFile, StoredPiece, StoredTensor
from torsh_runtime.checkpoint.pieces import PieceReader
from torsh_runtime.checkpoint.saving import tensors_of
from torsh_runtime.checkpoint.writer import FileLayout
from torsh_runtime.elastic.memory import Commit, aligned_starts
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.layout import Piece, cover
from torsh_runtime.parallel.state import Contents, merged_values

Bytes = NDArray[np.uint8]
Key = tuple[int, int]
"""Identifies a commit: its sequence number, and a token that no other commit has."""


class Part(NamedTuple):
    """Holds what one rank has kept, or what another rank has kept for it."""

    told: tuple[str, str]
    """The part's texts: a manifest without values, and the values."""
    num_tensors: int
    manifest: Manifest
    values: Mapping[str, Any]
    aliases: Mapping[str, str]
    is_copied: bool
    """True if each rank's part has a copy and is needed; otherwise each node has everything."""

    @classmethod
    def of(cls, told: Sequence[str], num_tensors: int) -> Part:
        """Parse a part's texts. Raises CheckpointError if they are invalid."""
        text, plain = told
        manifest = Manifest.from_bytes(text.encode())
        try:
            own = json.loads(plain)
            values, aliases = dict(own["values"]), dict(own["aliases"])
            is_copied = bool(own["copied"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(f"the values of a commit make no sense: {error!r}") from None
        return cls((text, plain), num_tensors, manifest, values, aliases, is_copied)


def told_of(layouts: Sequence[FileLayout], world_size: int) -> bytes:
    """Return the description of files, which stays the same as long as the plan does."""
    files = {each.name: StoredFile(each.num_bytes, each.num_bytes, (0,)) for each in layouts}
    return Manifest(0, world_size, 0.0, tensors_of(layouts), {}, {}, files).to_bytes()


def told_values(contents: Contents, is_copied: bool) -> bytes:
    """Return the description of everything but tensors, which changes with each commit."""
    told = {"values": contents.values, "aliases": contents.aliases, "copied": is_copied}
    return json.dumps(told).encode()


class NodeParts:
    """Collects what this node's memory has of one commit."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.files: dict[str, Bytes] = {}

    def add(self, commit: Commit, content: Bytes) -> None:
        """Add the content of one slot. Raises CheckpointError if it is invalid."""
        texts = [each.decode(errors="replace") for each in commit.told]
        pairs = zip(texts[::2], texts[1::2], strict=False)
        parts = [Part.of(pair, commit.num_tensors) for pair in pairs]
        files = {name: each for part in parts for name, each in part.manifest.files.items()}
        starts, end = aligned_starts([each.num_bytes for each in files.values()])
        if end > content.size:
            raise CheckpointError(f"{end} bytes of a commit are not within {content.size}")
        for (name, each), start in zip(files.items(), starts, strict=True):
            self.files[name] = content[start : start + each.num_bytes]
        self.parts += parts


def parts_of(commits: Iterable[tuple[Commit, Bytes]]) -> dict[Key, NodeParts]:
    """Return the parts by commit. Invalid ones are skipped with a RuntimeWarning."""
    found: dict[Key, NodeParts] = {}
    for commit, content in commits:
        try:
            found.setdefault((commit.sequence, commit.token), NodeParts()).add(commit, content)
        except CheckpointError as error:
            warnings.warn(
                f"passed over a part of a commit in memory: {error}", RuntimeWarning, stacklevel=2
            )
    return found


class WholeCommit(PieceReader):
    """Represents all parts of a commit on any nodes. Its bytes are fetched with Fetching."""

    def __init__(self, sequence: int, parts: Sequence[Part]) -> None:
        """Join the parts. Raises CheckpointError if something is missing."""
        self.where = f"commit {sequence}"
        pieces: dict[str, dict[StoredPiece, None]] = {}
        kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
        aliases: dict[str, str] = {}
        files: dict[str, StoredFile] = {}
        by_rank = sorted(parts, key=lambda each: min(each.manifest.files))
        values = merged_values([part.values for part in by_rank])
        for part in by_rank:
            aliases |= part.aliases
            for name, tensor in part.manifest.tensors.items():
                if kinds.setdefault(name, (tensor.dtype, tensor.shape)) != (
                    tensor.dtype,
                    tensor.shape,
                ):
                    raise CheckpointError(f"{self.where}: its parts differ on {name!r}")
                pieces.setdefault(name, {}).update(dict.fromkeys(tensor.pieces))
            for name, file in part.manifest.files.items():
                if files.setdefault(name, file) != file:
                    raise CheckpointError(f"{self.where}: its parts differ on {name}")
        tensors = {name: StoredTensor(*kinds[name], tuple(own)) for name, own in pieces.items()}
        if not parts:
            raise CheckpointError(f"{self.where}: no part of it is left")
        world_size = parts[0].manifest.world_size
        self.manifest = Manifest(sequence, world_size, 0.0, tensors, values, aliases, files)
        self._check(parts)

    def read_file(self, file: str, start: int, target: Bytes) -> None:
        """Refuse to read: Fetching transfers the bytes."""
        raise NotImplementedError

    def _check(self, parts: Sequence[Part]) -> None:
        ranks = {name.partition(".")[0] for name in self.manifest.files}
        if parts[0].is_copied and ranks != {
            f"rank-{rank:05d}" for rank in range(self.manifest.world_size)
        }:
            raise CheckpointError(f"{self.where}: parts of some ranks are lost")
        if len(self.manifest.tensors) != parts[0].num_tensors:
            raise CheckpointError(f"{self.where}: tensors are lost")
        for name, tensor in self.manifest.tensors.items():
            try:
                for _ in cover(Piece.whole(tensor.shape), [each.piece for each in tensor.pieces]):
                    pass
            except ConfigError:
                raise CheckpointError(f"{self.where}: a part of {name!r} is lost") from None
