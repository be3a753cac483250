"""Says where this rank is in a mesh: the axes, and its index along them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.errors import ConfigError
from torsh_runtime.mesh.groups import Dim, Groups
from torsh_runtime.mesh.layout import Axis, Layout


class Coordinates:
    """Provides the axes of a mesh and this rank's place in it; see DeviceMesh."""

    _layout: Layout
    _place: int
    _device_type: str
    _groups: Groups
    _further: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of the axes."""
        return self._layout.shape

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self._layout.axes)

    @property
    def mesh_dim_names(self) -> tuple[str, ...]:
        """Return the names of the axes."""
        return self._layout.names

    @property
    def device_type(self) -> str:
        """Return where arrays are stored: "cpu" or "cuda"."""
        return self._device_type

    @property
    def mesh(self) -> NDArray[np.int64]:
        """Return the ranks in the default group as an int64 array of the mesh's shape."""
        places = self._layout.members(self._place)
        ranks = [self._groups.ranks[place] for place in places]
        return np.array(ranks, np.int64).reshape(self.shape)

    def size(self, mesh_dim: Dim | None = None) -> int:
        """Return the number of ranks along the axis `mesh_dim`, or for None of the whole mesh.

        Raises:
            KeyError: For an unknown axis.

        Example:
            ```python
            mesh = tr.init_device_mesh((2, 4), ("dp", "tp"))
            mesh.size("tp"), mesh.size()  # 4, 8
            ```
        """
        return math.prod(self.shape) if mesh_dim is None else self._axis(mesh_dim).size

    def get_rank(self) -> int:
        """Return this process's rank in the default group."""
        return self._groups.ranks[self._place]

    def get_local_rank(self, mesh_dim: Dim | None = None) -> int:
        """Return this rank's index along an axis, which is its rank in the axis's group.

        Args:
            mesh_dim: The axis, by name or number; None if there is only one.

        Raises:
            ConfigError: If `mesh_dim` is None and there are several axes.
            KeyError: For an unknown axis.

        Example:
            ```python
            mesh = tr.init_device_mesh((2, 4), ("dp", "tp"))
            mesh.get_local_rank("tp")  # 1 on rank 5
            ```
        """
        return self._axis(mesh_dim).index(self._place)

    def get_coordinate(self) -> list[int]:
        """Return this rank's index along each axis.

        Example:
            ```python
            mesh = tr.init_device_mesh((2, 4), ("dp", "tp"))
            mesh.get_coordinate()  # [1, 1] on rank 5
            ```
        """
        return list(self._layout.coordinate(self._place))

    @property
    def coordinate(self) -> dict[str, int]:
        """Return this rank's index along each axis by name, including axes of views."""
        return {axis.name: axis.index(self._place) for axis in self._known.axes}

    @property
    def _known(self) -> Layout:
        """Return the axes of the mesh and of its views."""
        return Layout((*self._layout.axes, *self._further))

    def _axis(self, dim: Dim | None) -> Axis:
        if dim is None and self.ndim > 1:
            raise ConfigError(
                f"the mesh has the axes {', '.join(self._layout.names)}: name one of them, or take "
                f"flatten() for all"
            )
        if isinstance(dim, str):
            return self._known.axis(dim)
        if (dim or 0) not in range(-self.ndim, self.ndim):
            raise KeyError(f"no axis {dim}; this mesh has {self.ndim}")
        return self._layout.axes[dim or 0]
