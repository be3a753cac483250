"""Holds this rank's place among the ranks that compare a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from torsh_runtime.comm.objects import all_gather_object
from torsh_runtime.mesh.mesh import DeviceMesh


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
