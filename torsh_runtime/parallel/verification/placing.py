"""Which elements of a whole tensor a rank has, from the shapes that all ranks have. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise, product
from typing import NamedTuple

from torsh_runtime.layout import TensorLayout

Span = tuple[int, int]
Spans = tuple[tuple[Span, ...], ...]
"""For each dimension the indices that the rank has."""


class Part(NamedTuple):
    """What a rank has of a tensor."""

    spans: Spans
    has_rows: bool
    """Whether it is cut along an axis of the data."""


Along = Mapping[str, Sequence[Sequence[int]]]
"""For each axis the shapes on the ranks along it, in their order."""


def places(
    whole: Sequence[int],
    along: Along,
    coordinate: Mapping[str, int],
    data_axes: Sequence[str],
    features: tuple[str, TensorLayout] | None,
) -> list[Part]:
    """Where this rank's tensor may lie in the whole one, the likeliest first; nowhere if its shape
    is no part of that.

    data_axes: those that divide the first dimension. features: an axis with the layout of the
    weight whose first dimension the last one of an output comes from.
    """
    own = next((shapes[coordinate[axis]] for axis, shapes in along.items()), whole)
    if len(own) != len(whole):
        return []
    found: list[list[tuple[tuple[Span, ...], bool]]] = []
    for dim, (size, here) in enumerate(zip(whole, own, strict=True)):
        if here == size:
            found.append([(((0, size),), False)])
            continue
        by_weight = _of_features(size, here, coordinate, features) if dim == len(whole) - 1 else []
        found.append(by_weight or [*_cuts(dim, size, along, coordinate, data_axes)])
    return [
        Part(tuple(spans for spans, _ in each), any(is_data for _, is_data in each))
        for each in product(*found)
    ]


def _of_features(
    size: int,
    here: int,
    coordinate: Mapping[str, int],
    features: tuple[str, TensorLayout] | None,
) -> list[tuple[tuple[Span, ...], bool]]:
    if features is None or features[1].shape[0] != size:
        return []
    axis, layout = features
    spans = layout.piece({axis: coordinate[axis]}).spans_of(0)
    return [(spans, False)] if sum(end - start for start, end in spans) == here else []


def _cuts(
    dim: int, size: int, along: Along, coordinate: Mapping[str, int], data_axes: Sequence[str]
) -> Iterator[tuple[tuple[Span, ...], bool]]:
    """By each axis along which the sizes make up the whole; along the first dimension one of the
    data comes first."""
    for axis in sorted(along, key=lambda axis: (axis in data_axes) != (dim == 0)):
        sizes = [shape[dim] for shape in along[axis] if len(shape) > dim]
        if sum(sizes) == size and len(sizes) == len(along[axis]):
            own = [*pairwise(accumulate(sizes, initial=0))][coordinate[axis]]
            yield (own,), axis in data_axes
