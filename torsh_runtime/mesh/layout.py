"""Where ranks stand along named axes: arithmetic, without groups.

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
    """A row of places at one distance."""

    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of a mesh; of several that were flattened the first factor goes slowest."""

    name: str
    factors: tuple[Factor, ...]

    @property
    def size(self) -> int:
        """Number of places along it."""
        return math.prod(factor.size for factor in self.factors)

    def offsets(self) -> list[int]:
        """How far the places along it are from the first, in order."""
        steps = [range(0, factor.size * factor.stride, factor.stride) for factor in self.factors]
        return [sum(step) for step in product(*steps)]

    def divided(self, sizes: Sequence[int], names: Sequence[str]) -> tuple[Axis, ...]:
        """The places along it along axes of these sizes, which multiply to its own, in row-major
        order. ConfigError where such rows would not be at one distance."""
        left = list(self.factors)
        found: list[Axis] = []
        for name, size in reversed([*zip(names, sizes, strict=True)]):
            found.insert(0, Axis(name, self._taken(left, size)))
        return tuple(found)

    def _taken(self, left: list[Factor], size: int) -> tuple[Factor, ...]:
        """The fastest `size` places of the factors that are left, which go."""
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
        """Where along it a place stands, from 0."""
        index = 0
        for factor in self.factors:
            index = index * factor.size + place // factor.stride % factor.size
        return index


@dataclass(frozen=True, slots=True)
class Layout:
    """Some axes of a mesh, in order."""

    axes: tuple[Axis, ...]

    @classmethod
    def dense(cls, shape: Sequence[int], names: Sequence[str]) -> Layout:
        """All places, 0 to the product of the shape. ConfigError for names that do not fit it."""
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
        """Of the axes."""
        return tuple(axis.name for axis in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(axis.size for axis in self.axes)

    def axis(self, name: str) -> Axis:
        """The axis of this name. KeyError, saying which there are."""
        found = next((axis for axis in self.axes if axis.name == name), None)
        if found is None:
            raise KeyError(f"no axis {name!r}; this mesh has {', '.join(self.names)}")
        return found

    def coordinate(self, place: int) -> tuple[int, ...]:
        """Where along each axis a place stands."""
        return tuple(axis.index(place) for axis in self.axes)

    def text(self, place: int) -> str:
        """The same for people, "pp 1, tp 0", without axes of size 1."""
        axes = [axis for axis in self.axes if axis.size > 1]
        return ", ".join(f"{axis.name} {axis.index(place)}" for axis in axes)

    def members(self, place: int) -> tuple[int, ...]:
        """The places that differ from this one along these axes only, in row-major order."""
        rows = [axis.offsets() for axis in self.axes]
        own = sum(row[axis.index(place)] for axis, row in zip(self.axes, rows, strict=True))
        return tuple(place - own + sum(offsets) for offsets in product(*rows))

    def select(self, names: Sequence[str]) -> Layout:
        """These axes only, in this order. KeyError for unknown ones, ConfigError for twice one."""
        if len(set(names)) != len(names) or not names:
            raise ConfigError(f"axes {tuple(names)}: name some, and none of them twice")
        return Layout(tuple(self.axis(name) for name in names))

    def flattened(self, name: str) -> Layout:
        """The same places along one axis."""
        return Layout((Axis(name, tuple(f for axis in self.axes for f in axis.factors)),))


def resolved(shape: Sequence[int], places: int) -> tuple[int, ...]:
    """The shape, in which one size may be -1: as many as it takes. ConfigError unless it is one of
    so many places.
    """
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        raise ConfigError(
            f"a mesh of shape {tuple(shape)}: sizes are whole numbers, of which one may be -1"
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
