"""Computes the positions of ranks along named axes, without groups.

A place is a rank's number in the group that a mesh is made of. A layout of a whole mesh has every
place once, in row-major order: the last axis goes fastest. A layout of some of its axes has, for a
place, those that differ from it along these axes only.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from torsh_runtime.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Factor:
    """Represents places at equal distances."""

    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class Axis:
    """Represents one dimension of a mesh; a flattened one has several factors, slowest first."""

    name: str
    factors: tuple[Factor, ...]

    @property
    def size(self) -> int:
        """Return the number of places along the axis."""
        return math.prod(factor.size for factor in self.factors)

    def offsets(self) -> list[int]:
        """Return the distances of the places along the axis from the first, in order."""
        steps = [range(0, factor.size * factor.stride, factor.stride) for factor in self.factors]
        return [sum(step) for step in product(*steps)]

    def divided(self, sizes: Sequence[int], names: Sequence[str]) -> tuple[Axis, ...]:
        """Split the axis into axes of these sizes, in row-major order.

        The sizes must multiply to the axis's size. Raises ConfigError if places along a new axis
        would not be at equal distances.
        """
        left = list(self.factors)
        found: list[Axis] = []
        for name, size in reversed([*zip(names, sizes, strict=True)]):
            found.insert(0, Axis(name, self._taken(left, size)))
        return tuple(found)

    def _taken(self, left: list[Factor], size: int) -> tuple[Factor, ...]:
        """Remove the fastest `size` places from the factors in `left` and return their factors."""
        taken: list[Factor] = []
        while size > 1:
            factor = left.pop()
            if size % factor.size and factor.size % size:
                raise ConfigError(
                    f"{self.size} ranks in rows of {', '.join(str(f.size) for f in self.factors)} "
                    f"cannot be laid out anew with {size} of {factor.size} in a row: take sizes "
                    f"that divide the rows"
                )
            part = min(size, factor.size)
            taken.insert(0, Factor(part, factor.stride))
            if part < factor.size:
                left.append(Factor(factor.size // part, factor.stride * part))
            size //= part
        return tuple(taken) or (Factor(1, 1),)

    def index(self, place: int) -> int:
        """Return the index of a place along the axis, from 0."""
        index = 0
        for factor in self.factors:
            index = index * factor.size + place // factor.stride % factor.size
        return index


@dataclass(frozen=True, slots=True)
class Layout:
    """Represents some axes of a mesh, in order."""

    axes: tuple[Axis, ...]

    @classmethod
    def dense(cls, shape: Sequence[int], names: Sequence[str]) -> Layout:
        """Return the layout of all places from 0. Raises ConfigError for names that do not fit
        the shape."""
        are_texts = all(isinstance(name, str) and name for name in names)
        if len(names) != len(shape) or not are_texts or len(set(names)) != len(names):
            raise ConfigError(
                f"mesh_dim_names {tuple(names)} do not fit the shape {tuple(shape)}: give one name "
                f"for each dimension, a text that is not empty, and none twice"
            )
        strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
        rows = zip(names, shape, strides, strict=True)
        return cls(tuple(Axis(name, (Factor(size, stride),)) for name, size, stride in rows))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the axes."""
        return tuple(axis.name for axis in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of the axes."""
        return tuple(axis.size for axis in self.axes)

    def axis(self, name: str) -> Axis:
        """Return the axis of this name. Raises KeyError, which lists the existing axes."""
        found = next((axis for axis in self.axes if axis.name == name), None)
        if found is None:
            raise KeyError(f"no axis {name!r}; this mesh has {', '.join(self.names)}")
        return found

    def coordinate(self, place: int) -> tuple[int, ...]:
        """Return the index of a place along each axis."""
        return tuple(axis.index(place) for axis in self.axes)

    def text(self, place: int) -> str:
        """Return the coordinate as text, such as "pp 1, tp 0", without axes of size 1."""
        axes = [axis for axis in self.axes if axis.size > 1]
        return ", ".join(f"{axis.name} {axis.index(place)}" for axis in axes)

    def members(self, place: int) -> tuple[int, ...]:
        """Return the places that differ from this one only along these axes, in row-major order."""
        rows = [axis.offsets() for axis in self.axes]
        own = sum(row[axis.index(place)] for axis, row in zip(self.axes, rows, strict=True))
        return tuple(place - own + sum(offsets) for offsets in product(*rows))

    def select(self, names: Sequence[str]) -> Layout:
        """Return these axes in this order.

        Raises KeyError for unknown axes, ConfigError for repeated ones or none.
        """
        if len(set(names)) != len(names) or not names:
            raise ConfigError(f"axes {tuple(names)}: name some, and none of them twice")
        return Layout(tuple(self.axis(name) for name in names))

    def flattened(self, name: str) -> Layout:
        """Return a layout with the same places along one axis."""
        return Layout((Axis(name, tuple(f for axis in self.axes for f in axis.factors)),))


def resolved(shape: Sequence[int], places: int) -> tuple[int, ...]:
    """Return the shape with a size of -1 replaced by the size that makes up `places`.

    Raises ConfigError unless the sizes then multiply to `places`.
    """
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        raise ConfigError(
            f"a mesh of shape {tuple(shape)}: sizes are integers, of which one may be -1"
        ) from None
    known = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and known > 0 and places % known == 0:
        sizes = tuple(places // known if size == -1 else size for size in sizes)
    if not sizes or min(sizes) < 1 or math.prod(sizes) != places:
        raise ConfigError(
            f"a mesh of shape {tuple(shape)} does not have {places} ranks, as its group does: the "
            f"sizes must multiply to that, and one of them may be -1"
        )
    return sizes
