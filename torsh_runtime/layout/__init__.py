"""Computes which elements of a tensor a rank has, without arrays and groups."""

from torsh_runtime.layout.piece import Overlap, Piece, ShardedTensor, cover, overlaps
from torsh_runtime.layout.placement import (
    Flat,
    Partial,
    Placement,
    Replicate,
    Shard,
    TensorLayout,
    even_cuts,
)
from torsh_runtime.layout.rows import (
    FlatLayout,
    end_to_end,
    even_layout,
    even_owners,
    owner_cuts,
    row_cuts,
    row_size,
)

__all__ = [
    "Flat",
    "FlatLayout",
    "Overlap",
    "Partial",
    "Piece",
    "Placement",
    "Replicate",
    "Shard",
    "ShardedTensor",
    "TensorLayout",
    "cover",
    "end_to_end",
    "even_cuts",
    "even_layout",
    "even_owners",
    "overlaps",
    "owner_cuts",
    "row_cuts",
    "row_size",
]
