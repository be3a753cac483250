"""What a checkpoint says of pieces, and what merges the plain values of ranks."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from torsh_runtime.checkpoint.manifest import Manifest, StoredFile, StoredPiece, StoredTensor
from torsh_runtime.layout import Piece, Shard, TensorLayout
from torsh_runtime.parallel.state import merged_values

LAYOUT = TensorLayout((12, 2), (("tp", 2, Shard(0, (6, 2, 4))),))


def manifest(pieces: list[Piece]) -> Manifest:
    stored = tuple(StoredPiece("rank-00000.safetensors", 0, piece) for piece in pieces)
    tensors = {"weight": StoredTensor("float32", (12, 2), stored)}
    files = {"rank-00000.safetensors": StoredFile(96, 96, (0,))}
    return Manifest(1, 1, 0.0, tensors, {}, {}, files)


@pytest.mark.parametrize(
    ("pieces", "version"),
    [
        ([Piece.whole((12, 2))], 1),
        ([LAYOUT.piece({"tp": index}) for index in range(2)], 2),
        ([LAYOUT.piece({"tp": 1}).part(3, 9)], 2),
    ],
)
def test_pieces_come_back_and_only_those_of_several_boxes_are_news(
    pieces: list[Piece], version: int
) -> None:
    written = manifest(pieces).to_bytes()
    assert json.loads(written.partition(b"\n")[2])["version"] == version
    assert Manifest.from_bytes(written) == manifest(pieces)


def test_manifests_without_spans_are_read() -> None:
    told = json.loads(manifest([Piece.whole((12, 2))]).to_bytes().partition(b"\n")[2])
    assert told["tensors"]["weight"]["pieces"][0]["piece"].pop("spans") == []
    content = json.dumps(told).encode()
    found = Manifest.from_bytes(b"%08x\n" % zlib.crc32(content) + content)
    assert found == manifest([Piece.whole((12, 2))])


def group(*params: str, **options: Any) -> dict[str, Any]:
    return {"params": [*params], **options}


def test_of_optimizers_the_parameters_of_all_stages_are_kept() -> None:
    told = [
        {"step": 1, "optimizer": {"param_groups": [group("a", "tied", lr=1), group("b", lr=2)]}},
        {"step": 2, "optimizer": {"param_groups": [group("c", "tied", lr=1), group("d", lr=3)]}},
        {"other": 3, "optimizer": {"param_groups": [group("a", lr=1)]}},
    ]
    groups = [group("a", "tied", "c", lr=1), group("b", lr=2), group("d", lr=3)]
    assert merged_values(told) == {
        "step": 1,
        "optimizer": {"param_groups": groups},
        "other": 3,
    }
