"""Computes which elements of a whole tensor a rank has. Pure.

They follow from its share of the batch and from the shapes that ranks have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise, product
from typing import NamedTuple

from torsh_runtime.layout import TensorLayout

Span = tuple[int, int]
Spans = tuple[tuple[Span, ...], ...]
"""For each dimension the indices that the rank has, in order."""


class DataCut(NamedTuple):
    """Holds which indices along a dimension a rank has."""

    spans: tuple[Span, ...]
    axes: tuple[str, ...]
    """Axes of the data along which other ranks have the rest."""


class Part(NamedTuple):
    """Holds which part of a tensor a rank has."""

    spans: Spans
    axes: frozenset[str]
    """Axes of the data along which the tensor is cut."""


Along = Mapping[str, Sequence[Sequence[int]]]
"""For each axis of the model the shapes on the ranks along it, in their order."""
Cuts = Callable[[int, int], Iterable[DataCut]]
"""(dimension, its size) -> what this rank may have by its share of the batch."""


def places(
    whole: Sequence[int],
    own: Sequence[int],
    along: Along,
    coordinate: Mapping[str, int],
    cuts: Cuts,
    features: tuple[str, TensorLayout] | None,
) -> list[Part]:
    """Return possible places of this rank's tensor in the whole one, the likeliest first.

    The list is empty if its shape cannot be that of a part.

    features: an axis and the layout of the weight whose first dimension determines the last one of
    an output.
    """
    if len(own) != len(whole):
        return []
    found: list[list[DataCut]] = []
    for dim, (size, here) in enumerate(zip(whole, own, strict=True)):
        by_weight = _of_features(size, here, coordinate, features) if dim == len(whole) - 1 else []
        found.append(by_weight or [*_along_dim(dim, size, here, along, coordinate, cuts)])
    return [
        Part(tuple(each.spans for each in one), frozenset(chain(*(each.axes for each in one))))
        for one in product(*found)
    ]


def within(spans: Iterable[Span]) -> int:
    """Return the number of indices in the spans."""
    return sum(end - start for start, end in spans)


def _of_features(
    size: int,
    here: int,
    coordinate: Mapping[str, int],
    features: tuple[str, TensorLayout] | None,
) -> list[DataCut]:
    if features is None or features[1].shape[0] != size or here == size:
        return []
    axis, layout = features
    spans = layout.piece({axis: coordinate[axis]}).spans_of(0)
    return [DataCut(spans, ())] if within(spans) == here else []


def _along_dim(
    dim: int,
    size: int,
    here: int,
    along: Along,
    coordinate: Mapping[str, int],
    cuts: Cuts,
) -> Iterator[DataCut]:
    """Yield the cuts by the share of the batch alone, and then those by an axis of the model too.

    Sizes along such an axis must add up to what the share leaves.
    """
    data = [*cuts(dim, size)]
    yield from (cut for cut in data if within(cut.spans) == here)
    for cut in data:
        for axis, shapes in along.items():
            sizes = [shape[dim] for shape in shapes if len(shape) > dim]
            is_all = len(sizes) == len(shapes) and sum(sizes) == within(cut.spans)
            if is_all and here != within(cut.spans):
                first, last = [*pairwise(accumulate(sizes, initial=0))][coordinate[axis]]
                yield DataCut(_taken(cut.spans, first, last), cut.axes)


def _taken(spans: Sequence[Span], first: int, last: int) -> tuple[Span, ...]:
    """Return the indices numbered from `first` to before `last` along the spans."""
    found, at = [], 0
    for start, end in spans:
        low, high = max(first - at, 0), min(last - at, end - start)
        if low < high:
            found.append((start + low, start + high))
        at += end - start
    return tuple(found)
