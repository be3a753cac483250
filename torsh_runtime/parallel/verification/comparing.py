"""Values of this rank beside those of one process, and what a difference looks like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torsh_runtime.parallel.verification.difference import Kind

SMALL = 1e-3
"""Of the largest value of a kind: what is smaller is compared as if it were so large, for sums may
leave noise where there is nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One value in both runs."""

    order: tuple[int, int]
    """Its place in the computation."""
    kind: Kind
    name: str
    own: Any
    """This rank's; None if it has none."""
    part: Any
    """What one process has for it; None where this rank's has a shape that is no part of that."""
    whole_shape: tuple[int, ...]
    scale: float
    """How large such values are."""

    def differs(self, tolerance: float) -> bool:
        """Whether that is more than rounding."""
        if self.own is None or self.part is None:
            return True
        return not close(self.own, self.part, tolerance * self.scale)

    @property
    def text(self) -> str:
        """What this rank has, and what one process has."""
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
    """Whether two arrays of one shape differ by no more. What is no number equals itself."""
    if one.shape != other.shape:
        return False
    apart = np.abs(one - other)
    both_nan = np.isnan(one) & np.isnan(other)
    return bool(np.all((apart <= distance) | both_nan | (one == other)))


def scale_of(own: Any, largest: float) -> float:
    """Of a value among others of its kind, the largest of which is known."""
    size = float(np.abs(own).max(initial=0.0))
    return max(size, SMALL * largest) or 1.0


@dataclass(frozen=True, slots=True)
class Held:
    """One rank's side of a pair."""

    own: Any
    part: Any


def why(
    at: int, held: Mapping[int, Held], along: Mapping[str, Sequence[int]], distance: float
) -> str:
    """What the difference on rank `at` looks like, from what all ranks have; "" is unknown.

    along: for each axis the ranks along it, this one among them. distance: what is rounding.
    """
    mine = held[at]
    if mine.own is None or mine.part is None:
        return ""
    if np.isnan(mine.own).any():
        return "some of it is no number"
    for axis, ranks in along.items():
        others = [held[rank] for rank in ranks if rank in held and held[rank].own is not None]
        found = _along(axis, mine, others, distance) if len(ranks) == len(others) > 1 else ""
        if found:
            return found
    return _ratio(mine, along, distance)


def _along(axis: str, mine: Held, others: Sequence[Held], distance: float) -> str:
    replicated = all(_same(each.part, mine.part, 0.0) for each in others)
    if all(each.own.shape == mine.own.shape for each in others):
        total = sum(each.own for each in others)
        if replicated and _same(total, mine.part, distance):
            return f"each rank has a part of a sum along {axis}, which is not added up"
        if replicated and _same(mine.own, sum(each.part for each in others), distance):
            return f"it is {len(others)} times that: added up once too often along {axis}"
    if not replicated:
        for index, each in enumerate(others):
            if each is not mine and _same(mine.own, each.part, distance):
                return f"it is what the rank with {axis} {index} has to have"
    elif not all(_same(each.own, mine.own, distance) for each in others):
        return f"ranks along {axis} differ, and have to have the same"
    return ""


def _same(one: Any, other: Any, distance: float) -> bool:
    return one is not None and other is not None and close(one, other, distance)


def _ratio(mine: Held, along: Mapping[str, Sequence[int]], distance: float) -> str:
    """Of what is the right value times a number."""
    size = float((mine.part * mine.part).sum())
    factor = float((mine.own * mine.part).sum()) / size if size else 0.0
    if not size or not close(mine.own, factor * mine.part, distance):
        return ""
    if close(mine.own, 0 * mine.part, distance):
        return "it is nothing but zeros"
    for axis, ranks in along.items():
        for number, told in ((1 / len(ranks), "averaged instead of added up, or scaled once"),):
            if len(ranks) > 1 and abs(factor - number) < 1e-6:
                return f"it is 1/{len(ranks)} of that: {told} too often along {axis}"
    return f"it is {factor:.6g} times that"
