"""Compares values of this rank with those of one process, and says what a difference looks like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from torsh_runtime.framework import Module
from torsh_runtime.framework.models import kind_of, trained_parameters
from torsh_runtime.parallel.verification.placing import Place

Kind = Literal["mask", "activation", "loss", "output's gradient", "parameter", "gradient", "norm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Describes one value that differs from that of one process."""

    kind: Kind
    """The kind of value, such as "gradient"."""
    name: str
    """Name of the module or parameter in the model that is not spread."""
    rank: int
    """A rank that has the difference, in the mesh's group."""
    coordinate: str
    """Coordinate of that rank in the mesh: "dp 0, tp 1"."""
    text: str
    """Value of that rank beside that of one process, in words."""
    why: str = ""
    """Likely cause; "" if it is unknown."""

    def __str__(self) -> str:
        what = f"the {self.kind} of {self.name!r}" if self.name else f"the {self.kind}"
        why = f": {self.why}" if self.why else ""
        return f"{what} on rank {self.rank} ({self.coordinate}) {self.text}{why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Holds the result of verify(), the same on all ranks. True if nothing differs.

    Example:
        ```python
        result = tr.verify(model, mesh, plan, batch)
        assert result, str(result)
        ```
    """

    compared: int
    """Number of values that were compared."""
    differences: tuple[Difference, ...] = field(default=())
    """The first difference of each kind and name, in the order of the computation."""

    def __bool__(self) -> bool:
        return not self.differences

    @property
    def first(self) -> Difference | None:
        """Return the first difference, which may have caused those after it."""
        return self.differences[0] if self.differences else None

    def __str__(self) -> str:
        if not self.differences:
            return f"{self.compared} values are those of one process"
        more = len(self.differences) - 1
        then = f"; {more} more differ after it" if more else ""
        return f"first, {self.differences[0]}{then}"


SMALL = 1e-3
"""Fraction of the largest value of a kind. Smaller values are compared as if they had this size,
because sums may leave noise where the result is zero.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Holds a value of both runs."""

    order: tuple[int, int]
    """Place in the order of the computation."""
    kind: Kind
    name: str
    own: Any
    """Value of this rank; None if it has none."""
    part: Any
    """The corresponding part of one process's value; None where the shapes do not fit."""
    whole_shape: tuple[int, ...]
    scale: float
    """Magnitude of such values."""

    def differs(self, tolerance: float) -> bool:
        """Return whether the two values differ by more than rounding."""
        if self.own is None or self.part is None:
            return True
        return not close(self.own, self.part, tolerance * self.scale)

    @property
    def text(self) -> str:
        """Describe this rank's value beside that of one process, for people."""
        if self.own is None:
            return "is missing"
        if self.part is None:
            return f"has shape {self.own.shape}, which is no part of {self.whole_shape}"
        if self.own.ndim == 0:
            return f"is {float(self.own):.6g} instead of {float(self.part):.6g}"
        apart = np.abs(self.own - self.part)
        at = np.unravel_index(int(np.argmax(np.where(np.isnan(apart), np.inf, apart))), apart.shape)
        where = ", ".join(map(str, map(int, at)))
        return f"is {self.own[at]:.6g} at ({where}) instead of {self.part[at]:.6g}"


def close(one: Any, other: Any, distance: float) -> bool:
    """Return whether two arrays differ by `distance` at most. NaN equals NaN."""
    if one.shape != other.shape:
        return False
    apart = np.abs(one - other)
    both_nan = np.isnan(one) & np.isnan(other)
    return bool(np.all((apart <= distance) | both_nan | (one == other)))


def tolerance_of(model: Module) -> float:
    """Return the relative tolerance for a model, from the coarsest dtype of its parameters."""
    kinds = [kind_of(each)[0] for _, each in trained_parameters(model)]
    return float(max(map(_precision, kinds), default=1e-16) ** 0.6)


def _precision(dtype: str) -> float:
    """Return the distance between 1 and the next number of this dtype."""
    known = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
    return next((size for name, size in known.items() if dtype.endswith(name)), 2.0**-23)


def scale_of(own: Any, largest: float) -> float:
    """Return the magnitude of a value, given the largest value of its kind."""
    size = float(np.abs(own).max(initial=0.0))
    return max(size, SMALL * largest) or 1.0


@dataclass(frozen=True, slots=True)
class Held:
    """Holds one rank's side of a pair."""

    own: Any
    part: Any


def why(
    at: int, held: Mapping[int, Held], along: Mapping[str, Sequence[int]], distance: float
) -> str:
    """Explain the difference on rank `at` by what all ranks have; "" if that is not possible.

    along: for each axis the ranks along it, this one among them. distance: the largest difference
    that counts as rounding.
    """
    mine = held[at]
    if mine.own is None or mine.part is None:
        return ""
    if np.isnan(mine.own).any():
        return "some of it is no number"
    rows = {axis: [held[rank] for rank in ranks if rank in held] for axis, ranks in along.items()}
    whole = {
        axis: row
        for axis, row in rows.items()
        if len(row) == len(along[axis]) > 1 and all(each.own is not None for each in row)
    }
    for look in (_is_anothers, _is_not_added_up, _differs_on_replicas):
        for axis, row in whole.items():
            found = look(axis, mine, row, distance)
            if found:
                return found
    return _ratio(mine, {axis: len(ranks) for axis, ranks in along.items()}, distance)


def _is_anothers(axis: str, mine: Held, row: Sequence[Held], distance: float) -> str:
    for index, each in enumerate(row):
        is_other = not _same(each.part, mine.part, 0.0)
        if is_other and _same(mine.own, each.part, distance):
            return f"it is what the rank with {axis} {index} has to have"
    return ""


def _is_not_added_up(axis: str, mine: Held, row: Sequence[Held], distance: float) -> str:
    if not _are_replicas(mine, row) or any(each.own.shape != mine.own.shape for each in row):
        return ""
    alike = all(_same(each.own, mine.own, distance) for each in row)
    total = sum(each.own for each in row)
    if alike:
        return ""
    if _same(total, mine.part, distance):
        return f"each rank has a part of a sum along {axis}, which is not added up"
    is_mean = _same(total / len(row), mine.part, distance)
    return f"each rank along {axis} has its own, which are not averaged" if is_mean else ""


def _differs_on_replicas(axis: str, mine: Held, row: Sequence[Held], distance: float) -> str:
    alike = all(_same(each.own, mine.own, distance) for each in row)
    told = f"ranks along {axis} differ, and have to have the same"
    return told if _are_replicas(mine, row) and not alike else ""


def _are_replicas(mine: Held, row: Sequence[Held]) -> bool:
    return all(_same(each.part, mine.part, 0.0) for each in row)


def _same(one: Any, other: Any, distance: float) -> bool:
    return one is not None and other is not None and close(one, other, distance)


def _ratio(mine: Held, sizes: Mapping[str, int], distance: float) -> str:
    """Describe a value that is the right one times a number; else "". sizes: those of the axes."""
    square = float((mine.part * mine.part).sum())
    factor = float((mine.own * mine.part).sum()) / square if square else 0.0
    if not square or not close(mine.own, factor * mine.part, distance):
        return ""
    if close(mine.own, 0 * mine.part, distance):
        return "it is nothing but zeros"
    for size in sorted({size for size in sizes.values() if size > 1}):
        axes = " or ".join(axis for axis, each in sizes.items() if each == size)
        if abs(factor - size) < _NEAR:
            return f"it is {size} times that: added up once too often along {axes}"
        if abs(factor - 1 / size) < _NEAR:
            return f"it is 1/{size} of that: averaged instead of added up along {axes}"
    return f"it is {factor:.6g} times that"


_NEAR = 1e-6


def judged(pairs: Sequence[Pair], place: Place, tolerance: float) -> list[Difference]:
    """Return what differs, the same on all ranks, which call this together.

    Each kind and name is listed once, in the order of the computation. The first difference has an
    explanation.
    """
    bad = [pair for pair in pairs if pair.differs(tolerance)]
    told = place.of_all([(pair.order, pair.kind, pair.name, pair.text) for pair in bad])
    first: dict[Any, tuple[Any, int, str]] = {}
    for rank, rows in enumerate(told):
        for order, kind, name, text in rows:
            known = first.get((kind, name))
            if known is None or (order, rank) < known[:2]:
                first[kind, name] = order, rank, text
    ordered = sorted(first.items(), key=lambda item: item[1][:2])
    mine = {pair.order: pair for pair in pairs}
    return [
        Difference(
            kind=kind,
            name=name,
            rank=rank,
            coordinate=place.told(rank),
            text=text,
            why="" if number else _why(mine.get(order), rank, place, tolerance),
        )
        for number, ((kind, name), (order, rank, text)) in enumerate(ordered)
    ]


def _why(pair: Pair | None, rank: int, place: Place, tolerance: float) -> str:
    everyone = place.of_all(None if pair is None else (Held(pair.own, pair.part), pair.scale))
    held = {number: each[0] for number, each in enumerate(everyone) if each is not None}
    return why(rank, held, place.along(rank), tolerance * everyone[rank][1])
