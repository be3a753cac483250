"""DeviceMesh: the ranks of a group along named axes, and groups along each of them."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.base import BackendKind, BackendType
from torsh_runtime.comm.choosing import backend_type, by_device, get_default_backend_for_device
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import CommAborted, ConfigError
from torsh_runtime.mesh.layout import Axis, Layout, resolved

Dim = str | int
Overrides = Mapping[Dim, str | BackendType]


@overload
def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Overrides | None = None,
) -> DeviceMesh: ...


@overload
def init_device_mesh(
    device_type: Sequence[int],
    mesh_shape: Sequence[str] | None = None,
    *,
    backend_override: Overrides | None = None,
) -> DeviceMesh: ...


def init_device_mesh(
    device_type: Any,
    mesh_shape: Any = None,
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Overrides | None = None,
) -> DeviceMesh:
    """A mesh of all ranks of the default group, as torch's function of this name; or shorter, for
    arrays on CPUs: `init_device_mesh((2, -1), ("dp", "tp"))`.

    Every rank calls it, with the same arguments, and in the same order where there are several.
    Nothing is communicated. See DeviceMesh for the arguments, and for what is raised.
    """
    if not isinstance(device_type, str):
        device_type, mesh_shape, mesh_dim_names = "cpu", device_type, mesh_dim_names or mesh_shape
    return DeviceMesh(mesh_shape, mesh_dim_names, default_group(), device_type, backend_override)


class DeviceMesh:
    """Ranks of a group along named axes. It is handed to who needs it; there is no current mesh.

    `mesh["dp"]` and `mesh["dp", "tp"]` are meshes of these axes around this rank, and `flatten()`
    of one has a single axis with all its ranks. The group along an axis is made when it is first
    asked for, which all its ranks then wait for; axes with the same ranks share it, one with all
    ranks of the mesh's group is that group, and one of size 1 is a group without anybody to meet.
    They end with the default group.
    """

    def __init__(
        self,
        mesh_shape: Sequence[int],
        mesh_dim_names: Sequence[str] | None = None,
        group: ProcessGroup | None = None,
        device_type: str = "cpu",
        backend_override: Overrides | None = None,
    ) -> None:
        """`mesh_shape`: sizes that multiply to the number of ranks, of which one may be -1; ranks
        go along the last axis first. mesh_dim_names: of the axes; None: dim_0, dim_1 and so on.

        group: whose ranks, in its order; None is the default group. device_type: where the arrays
        lie, which says what backend the groups have: `group`'s if it serves those.
        backend_override: another one for some axes, by name or number. Raises ConfigError for what
        does not fit.
        """
        root = group or default_group()
        groups = _Groups(root)  # which refuses who is not in the group
        shape = resolved(mesh_shape, root.world_size)
        names = mesh_dim_names or [f"dim_{dim}" for dim in range(len(shape))]
        layout = Layout.dense(shape, names)
        kinds = _kinds(layout.names, device_type, root, backend_override or {})
        self._be(layout, root.rank, device_type, kinds, groups)

    def _be(
        self,
        layout: Layout,
        place: int,
        device_type: str,
        kinds: Mapping[str, BackendKind],
        groups: _Groups,
    ) -> None:
        self._layout = layout
        self._place = place
        self._device_type = device_type
        self._kinds = kinds
        self._groups = groups

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        """The mesh of these axes, in this order, around this rank. KeyError for unknown ones."""
        wanted = (names,) if isinstance(names, str) else names
        return self._view(self._layout.select(wanted), self._kinds)

    def flatten(self, mesh_dim_name: str | None = None) -> DeviceMesh:
        """The same ranks along one axis; its name is made of those of the axes unless it is given.

        Its backend is that of the first axis.
        """
        name = mesh_dim_name or "_".join(self._layout.names)
        kinds = {name: self._kinds[self._layout.names[0]]}
        return self._view(self._layout.flattened(name), kinds)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self._layout.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._layout.axes)

    @property
    def mesh_dim_names(self) -> tuple[str, ...]:
        """Names of the axes."""
        return self._layout.names

    @property
    def device_type(self) -> str:
        """Where the arrays lie: "cpu" or "cuda"."""
        return self._device_type

    @property
    def mesh(self) -> NDArray[np.int64]:
        """The ranks, as the default group numbers them, in the shape of the mesh."""
        places = self._layout.members(self._place)
        ranks = [self._groups.ranks[place] for place in places]
        return np.array(ranks, np.int64).reshape(self.shape)

    def size(self, mesh_dim: Dim | None = None) -> int:
        """Number of ranks along an axis; None: of the mesh."""
        return math.prod(self.shape) if mesh_dim is None else self._axis(mesh_dim).size

    def get_rank(self) -> int:
        """This process's rank in the default group."""
        return self._groups.ranks[self._place]

    def get_local_rank(self, mesh_dim: Dim | None = None) -> int:
        """Where along an axis this rank stands, which is its rank in the axis's group. None: of a
        mesh that has one axis.
        """
        return self._axis(mesh_dim).index(self._place)

    def get_coordinate(self) -> list[int]:
        """Where along each axis this rank stands."""
        return list(self._layout.coordinate(self._place))

    def get_group(self, mesh_dim: Dim | None = None) -> ProcessGroup:
        """The group of this rank and those that differ from it along this axis only. None: of a
        mesh that has one axis. Raises what new_group raises.
        """
        axis = self._axis(mesh_dim)
        places = Layout((axis,)).members(self._place)
        return self._groups.get(places, self._kinds[axis.name])

    def get_all_groups(self) -> list[ProcessGroup]:
        """The groups of all axes, in their order."""
        return [self.get_group(name) for name in self._layout.names]

    def __eq__(self, other: object) -> bool:
        """Whether it is a view of the same mesh with the same axes."""
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return self._groups is other._groups and self._layout == other._layout

    def __hash__(self) -> int:
        return hash((id(self._groups), self._layout))

    def __repr__(self) -> str:
        axes = ", ".join(f"{axis.name}={axis.size}" for axis in self._layout.axes)
        return f"DeviceMesh({axes}; {self._device_type})"

    def _view(self, layout: Layout, kinds: Mapping[str, BackendKind]) -> DeviceMesh:
        view = object.__new__(DeviceMesh)
        view._be(layout, self._place, self._device_type, kinds, self._groups)
        return view

    def _axis(self, dim: Dim | None) -> Axis:
        if dim is None and self.ndim > 1:
            raise ConfigError(
                f"the mesh has the axes {', '.join(self._layout.names)}: name one of them, or take "
                f"flatten() for all"
            )
        if isinstance(dim, str):
            return self._layout.axis(dim)
        if (dim or 0) not in range(-self.ndim, self.ndim):
            raise KeyError(f"no axis {dim}; this mesh has {self.ndim}")
        return self._layout.axes[dim or 0]


class _Groups:
    """The groups of all views of one mesh, each made when it is first asked for."""

    def __init__(self, root: ProcessGroup) -> None:
        """`root`: the mesh's group, in which its places are the ranks."""
        self.root = root
        self.ranks, self._session = root.ranks, root.session
        self._name = root.session.name(f"{root.name}/mesh", root.ranks)
        self._lock = threading.Lock()
        self._making: dict[tuple[object, ...], threading.Lock] = {}
        self._made: dict[tuple[object, ...], ProcessGroup] = {}

    def get(self, places: tuple[int, ...], kind: BackendKind) -> ProcessGroup:
        """That of these places in this order. CommAborted if the group has become another."""
        self._session.check_open()
        if self.root.ranks is not self.ranks:
            raise CommAborted(
                "the mesh's group was configured since, for other ranks: make another mesh of it"
            )
        if places == tuple(range(self.root.world_size)) and kind.value == self.root.backend:
            return self.root
        key = (kind, *places)
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:  # not all of them: peers may make others first, in other threads
            if key not in self._made:
                self._made[key] = self._make(places, kind)
            return self._made[key]

    def _make(self, places: tuple[int, ...], kind: BackendKind) -> ProcessGroup:
        ranks = [self.ranks[place] for place in places]
        return self._session.group(self._name, ranks, kind, self.root.timeout)


def _kinds(
    names: Sequence[str], device_type: str, root: ProcessGroup, overrides: Overrides
) -> dict[str, BackendKind]:
    """The backend of each axis."""
    own = backend_type(root.backend)
    if device_type not in by_device(own):
        own = backend_type(_default_backend(device_type))
    kinds = dict.fromkeys(names, own)
    for dim, backend in overrides.items():
        name = names[dim] if isinstance(dim, int) and dim in range(len(names)) else dim
        if name not in kinds or not isinstance(backend, str):
            raise ConfigError(
                f"backend_override has {backend!r} for axis {dim!r}: it takes names of backends, "
                f"for the axes {', '.join(names)}"
            )
        kinds[str(name)] = backend_type(backend)
    return kinds


def _default_backend(device_type: str) -> str:
    try:
        return get_default_backend_for_device(device_type)
    except ValueError as error:
        raise ConfigError(f"device_type {device_type!r}: {error}") from None
