"""How a tensor lies on the axes of a mesh, and which piece of it a rank has so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from torsh_runtime.errors import ConfigError
from torsh_runtime.layout.piece import Piece


@dataclass(frozen=True, slots=True)
class Replicate:
    """All along the axis have the same."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Each along the axis has a part of dimension `dim`, the first ones rounded up, as
    torch.chunk() cuts."""

    dim: int


@dataclass(frozen=True, slots=True)
class Flat:
    """Each along the axis has elements cuts[i] to cuts[i + 1], row-major, of what the axes before
    left."""

    cuts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Partial:
    """All along the axis have something of the same shape, of which the sum is the tensor."""


Placement = Replicate | Shard | Flat | Partial


def even_cuts(size: int, parts: int) -> tuple[int, ...]:
    """Where to cut `size` elements into so many parts that differ by one element at most."""
    return tuple(size * part // parts for part in range(parts + 1))


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """A tensor's shape, and its placement along each axis, the outermost first.

    ConfigError for a dimension that it has not, and where something follows a Flat axis that
    divides further.
    """

    shape: tuple[int, ...]
    axes: tuple[tuple[str, int, Placement], ...] = ()
    """Name, number of ranks, placement."""

    def __post_init__(self) -> None:
        is_flat = False
        for name, size, placement in self.axes:
            if isinstance(placement, Shard) and placement.dim not in range(len(self.shape)):
                raise ConfigError(
                    f"axis {name!r}: a tensor of shape {self.shape} has no dimension "
                    f"{placement.dim}"
                )
            if is_flat and isinstance(placement, Shard | Flat):
                raise ConfigError(f"axis {name!r}: nothing divides what is divided flat already")
            if isinstance(placement, Flat):
                is_flat = True
                _check_cuts(name, placement.cuts, size)

    def piece(self, coordinate: Mapping[str, int]) -> Piece:
        """What is at this place: `coordinate` is the index along each axis."""
        offsets, sizes, span = [0] * len(self.shape), [*self.shape], None
        for name, parts, placement in self.axes:
            index = coordinate[name]
            if isinstance(placement, Shard):
                dim, size = placement.dim, sizes[placement.dim]
                step = -(-size // parts)
                first = min(index * step, size)
                offsets[dim], sizes[dim] = offsets[dim] + first, min(step, size - first)
            elif isinstance(placement, Flat):
                span = placement.cuts[index], placement.cuts[index + 1]
        start, end = span or (0, math.prod(sizes))
        return Piece(self.shape, tuple(offsets), tuple(sizes), start, end)


def _check_cuts(name: str, cuts: tuple[int, ...], parts: int) -> None:
    if len(cuts) != parts + 1 or cuts[0] != 0 or any(a > b for a, b in pairwise(cuts)):
        raise ConfigError(f"axis {name!r}: {cuts} do not cut a tensor into {parts} parts")
