"""Where this rank stands among those that compare a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torsh_runtime.comm.objects import all_gather_object
from torsh_runtime.mesh.mesh import DeviceMesh


class Place:
    """This rank's, on a mesh of which some axes divide the data."""

    def __init__(self, mesh: DeviceMesh, data_axes: Sequence[str]) -> None:
        self.mesh = mesh
        self.data_axes = tuple(axis for axis in mesh.mesh_dim_names if axis in data_axes)
        self.group = mesh.flatten().get_group()

    @property
    def coordinate(self) -> Mapping[str, int]:
        return self.mesh.coordinate

    @property
    def data_ranks(self) -> int:
        return math.prod(self.mesh.size(axis) for axis in self.data_axes)

    def along(self, rank: int) -> dict[str, list[int]]:
        """The ranks along each axis through this one, all of the mesh's group."""
        shape = [self.mesh.size(axis) for axis in self.mesh.mesh_dim_names]
        numbers = np.arange(math.prod(shape)).reshape(shape)
        at = [int(index) for index in np.unravel_index(rank, shape)]
        return {
            axis: np.moveaxis(numbers, dim, -1)[(*at[:dim], *at[dim + 1 :])].tolist()
            for dim, axis in enumerate(self.mesh.mesh_dim_names)
        }

    def told(self, rank: int) -> str:
        """Its coordinate, for people."""
        shape = [self.mesh.size(axis) for axis in self.mesh.mesh_dim_names]
        at = np.unravel_index(rank, shape)
        names = self.mesh.mesh_dim_names
        return ", ".join(f"{axis} {int(index)}" for axis, index in zip(names, at, strict=True))

    def of_all(self, value: object) -> list[Any]:
        """Everyone's, by rank."""
        found: list[Any] = [None] * self.group.world_size
        all_gather_object(found, value, self.group)
        return found

    def summed_over_data(self, array: Any) -> Any:
        """The sum of the arrays along the data axes."""
        total = np.array(array, np.float64)
        for axis in self.data_axes:
            self.mesh.get_group(axis).all_reduce(total)
        return total
