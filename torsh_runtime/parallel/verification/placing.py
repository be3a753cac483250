"""Computes which rows, tokens and elements of whole tensors a rank has.

They follow from its place on the mesh, from its share of the batch, and from the shapes that ranks
have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise, product
from typing import Any, NamedTuple

import numpy as np

from torsh_runtime.comm.objects import all_gather_object
from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import TensorLayout
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.context import context_positions, context_shard


class Place:
    """Holds this rank's place on a mesh. Some of its axes divide batches, by rows or by tokens, and
    one may divide the model into stages.
    """

    def __init__(
        self, mesh: DeviceMesh, data_axes: Sequence[str], context_axis: str, stage_axis: str | None
    ) -> None:
        names = mesh.mesh_dim_names
        self.mesh = mesh
        self.row_axes = tuple(axis for axis in names if axis in data_axes)
        self.token_axes = tuple(axis for axis in names if axis == context_axis)
        self.data_axes = (*self.row_axes, *self.token_axes)
        self.group = mesh.flatten().get_group()
        self.stage_axis = stage_axis

    @property
    def coordinate(self) -> Mapping[str, int]:
        return self.mesh.coordinate

    @property
    def data_ranks(self) -> int:
        return self.size(self.data_axes)

    def size(self, axes: Collection[str]) -> int:
        """Return the number of ranks along these axes."""
        return math.prod(self.mesh.size(axis) for axis in axes)

    def number(self, axes: Sequence[str]) -> int:
        """Return this rank's number among them."""
        shape = tuple(self.mesh.size(axis) for axis in axes)
        own = tuple(self.coordinate[axis] for axis in axes)
        return int(np.ravel_multi_index(own, shape)) if axes else 0

    def around(self, axes: Collection[str]) -> list[int]:
        """Return the ranks, in the mesh's group, with this rank's coordinates on all other axes."""
        at = np.unravel_index(np.arange(self.group.world_size), self.mesh.shape)
        names = self.mesh.mesh_dim_names
        same = [at[d] == self.coordinate[n] for d, n in enumerate(names) if n not in axes]
        return [*map(int, np.flatnonzero(np.all(same, axis=0)))] if same else [*range(at[0].size)]

    def stage(self) -> list[int]:
        """Return the ranks that have parts of the same stages, this one among them."""
        return self.around([axis for axis in self.mesh.mesh_dim_names if axis != self.stage_axis])

    def along(self, rank: int) -> dict[str, list[int]]:
        """Return the ranks along each axis through `rank`, all numbered in the mesh's group."""
        numbers = np.arange(self.group.world_size).reshape(self.mesh.shape)
        at = [int(index) for index in np.unravel_index(rank, self.mesh.shape)]
        return {
            axis: np.moveaxis(numbers, dim, -1)[(*at[:dim], *at[dim + 1 :])].tolist()
            for dim, axis in enumerate(self.mesh.mesh_dim_names)
        }

    def told(self, rank: int) -> str:
        """Return the rank's coordinate in words."""
        at = np.unravel_index(rank, self.mesh.shape)
        names = self.mesh.mesh_dim_names
        return ", ".join(f"{axis} {int(index)}" for axis, index in zip(names, at, strict=True))

    def of_all(self, value: object) -> list[Any]:
        """Gather the values of all ranks, by rank."""
        found: list[Any] = [None] * self.group.world_size
        all_gather_object(found, value, self.group)
        return found

    def averaged(
        self, own: Mapping[str, Any], is_alike: Callable[[str, Any], bool] = lambda _, __: True
    ) -> dict[str, Any]:
        """Return means over the data axes of arrays that all ranks have, without the others.

        own: for each name the array, and a description of it. Only arrays for whose description
        is_alike(name, description) holds are averaged.
        """
        if self.data_ranks == 1:
            return {name: each for name, (each, _) in own.items()}
        everyone = self.of_all(dict(own))
        rows = [everyone[rank] for rank in self.around(self.data_axes)]
        found = {}
        for name in own:
            if all(name in row for row in rows):
                alike = [each for each, what in (row[name] for row in rows) if is_alike(name, what)]
                found[name] = sum(alike) / len(alike)
        return found

    def summed(self, array: Any, axes: Collection[str]) -> Any:
        """Return the sum of the arrays along these axes, in float64."""
        total = np.array(array, np.float64)
        for axis in axes:
            self.mesh.get_group(axis).all_reduce(total)
        return total


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


@dataclass(frozen=True, slots=True)
class Share:
    """Holds which of a batch's rows, and which tokens of each row, this rank has."""

    place: Place
    rows: int
    tokens: int
    own_rows: Span
    own_tokens: tuple[Span, ...]

    def of(self, tensor: Any) -> Any:
        """Return this rank's part of a tensor: its rows along dimension 0, its tokens along
        dimension 1.
        """
        shape = getattr(tensor, "shape", ())
        if len(shape) and self.own_rows != (0, self.rows):
            tensor = tensor[slice(*self.own_rows)]
        if len(shape) > 1 and self._is_by_token:
            tensor = context_shard(tensor, self.place.mesh[self.place.token_axes[0]])
        return tensor

    def cuts(self, dim: int, size: int) -> Iterator[DataCut]:
        """Yield the indices of an output's dimension that this rank may have, the likeliest first.

        They follow from its share: rows, tokens, or both where a dimension has all tokens of all
        rows. `size` is the number of indices in the output of the whole batch.
        """
        first, last = self.own_rows
        if dim == 0 and size % (self.rows * self.tokens) == 0 and self._is_by_token:
            each = size // (self.rows * self.tokens)
            spans = tuple(
                ((row * self.tokens + start) * each, (row * self.tokens + end) * each)
                for row in range(first, last)
                for start, end in self.own_tokens
            )
            yield DataCut(spans, self.place.data_axes)
        if dim == 0 and size % self.rows == 0 and last - first < self.rows:
            each = size // self.rows
            yield DataCut(((first * each, last * each),), self.place.row_axes)
        if dim and size == self.tokens and self._is_by_token:
            yield DataCut(self.own_tokens, self.place.token_axes)
        yield DataCut(((0, size),), ())

    @property
    def scales(self) -> tuple[float, ...]:
        """Return by which factors an output of the whole batch may be longer than this rank's.

        Lengths are those of the first dimension: of rows, and of rows with all their tokens.
        """
        rows = self.rows / (self.own_rows[1] - self.own_rows[0])
        return rows, rows * self.tokens / within(self.own_tokens)

    @property
    def _is_by_token(self) -> bool:
        return within(self.own_tokens) != self.tokens


def share_of(inputs: tuple[Any, ...], place: Place) -> Share:
    """Return this rank's share of the whole model's inputs.

    Raises ConfigError for rows that cannot be divided evenly over the axes of the data.
    """
    shape = next((each.shape for each in inputs if getattr(each, "shape", ())), (1,))
    rows, ranks = int(shape[0]), place.size(place.row_axes)
    own, rest = divmod(rows, ranks)
    if rest:
        raise ConfigError(
            f"a batch of {rows} rows cannot be cut into {ranks} equal parts for the axes "
            f"{', '.join(place.row_axes)}"
        )
    first = place.number(place.row_axes) * own
    tokens = [*map(int, shape), 1][1]
    kept: tuple[Span, ...] = ((0, tokens),)
    if place.size(place.token_axes) > 1:
        positions = context_positions(tokens, place.mesh[place.token_axes[0]]).tolist()
        kept = tuple((at, at + 1) for at in positions)
    return Share(place, rows, tokens, (first, first + own), kept)
