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
from torsh_runtime.layout.rows import owner_cuts, row_cuts, row_size

__all__ = [
    "Flat",
    "Overlap",
    "Partial",
    "Piece",
    "Placement",
    "Replicate",
    "Shard",
    "ShardedTensor",
    "TensorLayout",
    "cover",
    "even_cuts",
    "overlaps",
    "owner_cuts",
    "row_cuts",
    "row_size",
]
