"""DeviceMesh: the ranks of a group along named axes, and groups along each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.comm.agreement import agree
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.mesh.groups import Dim, Groups, Overrides, Strategies, Way, ways_of
from torsh_runtime.mesh.layout import Axis, Layout, resolved
from torsh_runtime.mesh.stats import OperationStats


@overload
def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Overrides | None = None,
    comm_strategy: Strategies | None = None,
) -> DeviceMesh: ...


@overload
def init_device_mesh(
    device_type: Sequence[int] | Mapping[str, int],
    mesh_shape: Sequence[str] | None = None,
    *,
    backend_override: Overrides | None = None,
    comm_strategy: Strategies | None = None,
) -> DeviceMesh: ...


def init_device_mesh(
    device_type: Any,
    mesh_shape: Any = None,
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Overrides | None = None,
    comm_strategy: Strategies | None = None,
) -> DeviceMesh:
    """A mesh of all ranks of the default group, as torch's function of this name; or shorter, for
    arrays on CPUs: `init_device_mesh({"pp": 2, "dp": -1, "tp": 2})`, or in two rows,
    `init_device_mesh((2, -1), ("dp", "tp"))`.

    Every rank calls it, with the same arguments, and in the same order where there are several.
    See DeviceMesh for the arguments, and for what is raised.
    """
    if isinstance(device_type, Mapping):
        device_type, mesh_shape = tuple(device_type.values()), tuple(device_type)
    if not isinstance(device_type, str):
        device_type, mesh_shape, mesh_dim_names = "cpu", device_type, mesh_dim_names or mesh_shape
    group = default_group()
    return DeviceMesh(
        mesh_shape, mesh_dim_names, group, device_type, backend_override, comm_strategy
    )


class DeviceMesh:
    """Ranks of a group along named axes. It is handed to who needs it; there is no current mesh.

    `mesh["dp"]` and `mesh["dp", "tp"]` are meshes of these axes around this rank, and `flatten()`
    of one has a single axis with all its ranks; `view()` gives ranks further names. The group along
    an axis is made when it is first asked for, which all its ranks then wait for; axes with the
    same ranks share it, one with all ranks of the mesh's group is that group, and one of size 1 is
    a group without anybody to meet. They end with the default group.
    """

    _further: tuple[Axis, ...]
    """Axes of views: the same ranks by other names."""
    _whole: Layout | None = None
    """Of a part: all axes of the mesh that it is one of."""
    _asked: tuple[Any, ...] | None = None
    """Shape, names and options as they were given; None for a part."""
    _views: tuple[tuple[Mapping[str, int], tuple[str, ...]], ...] = ()
    """Sizes, and over which axes."""

    def __init__(
        self,
        mesh_shape: Sequence[int],
        mesh_dim_names: Sequence[str] | None = None,
        group: ProcessGroup | None = None,
        device_type: str = "cpu",
        backend_override: Overrides | None = None,
        comm_strategy: Strategies | None = None,
    ) -> None:
        """`mesh_shape`: sizes that multiply to the number of ranks, of which one may be -1; ranks
        go along the last axis first, so that it lies in a node where it can: a warning is logged
        where it does not. mesh_dim_names: of the axes; None: dim_0, dim_1 and so on.

        group: whose ranks, in its order; None is the default group. device_type: where the arrays
        lie, which says what backend the groups have: `group`'s if it serves those.
        backend_override: another one for some axes, by name or number. comm_strategy: how ranks of
        several nodes carry out collectives, for all axes or by name: "adaptive", "standard",
        "ring", "tree" or "hierarchical"; else what TORSH_ALGORITHM says.

        All ranks of the group call it; they tell each other what mesh they mean. Raises ConfigError
        for what does not fit, on all ranks if they mean different ones, and CommError as the group.
        """
        root = group or default_group()
        groups = Groups(root)  # which refuses who is not in the group
        names = mesh_dim_names or [f"dim_{dim}" for dim in range(len(mesh_shape))]
        options = device_type, dict(backend_override or {}), comm_strategy
        agree(root, "DeviceMesh", f"{tuple(mesh_shape)} {tuple(names)} {options}")
        layout = Layout.dense(resolved(mesh_shape, root.world_size), names)
        ways = ways_of(layout.names, device_type, root, *options[1:])
        groups.stand(layout)
        self._be(layout, root.rank, device_type, ways, groups)
        self._asked = tuple(mesh_shape), tuple(names), options

    def _be(
        self,
        layout: Layout,
        place: int,
        device_type: str,
        ways: Mapping[str, Way],
        groups: Groups,
        further: tuple[Axis, ...] = (),
    ) -> None:
        self._layout = layout
        self._place = place
        self._device_type = device_type
        self._ways = ways
        self._groups = groups
        self._further = further

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        """The mesh of these axes, in this order, around this rank. KeyError for unknown ones."""
        wanted = names if isinstance(names, tuple | list) else (names,)
        return self._part(self._known.select(wanted), self._ways)

    def view(self, sizes: Mapping[str, int], over: Sequence[str]) -> DeviceMesh:
        """This mesh, in which the ranks along the axes `over`, in row-major order, also stand along
        axes of these names and sizes, of which one may be -1:

            mesh = mesh.view({"edp": 2, "ep": -1}, over=("dp", "cp", "tp"))
            mesh["ep"], mesh["dp", "cp"]

        Groups of the same ranks are the same ones. ConfigError for names that it has already, and
        for sizes that do not fit.
        """
        taken = [name for name in sizes if name in self._known.names]
        if taken:
            raise ConfigError(f"the mesh has an axis {taken[0]!r} already: name the view otherwise")
        over = (over,) if isinstance(over, str) else over
        (flat,) = self._known.select(over).flattened("all").axes
        axes = flat.divided(resolved([*sizes.values()], flat.size), [*sizes])
        ways = {**self._ways, **dict.fromkeys(sizes, self._ways[over[0]])}
        made = self._part(self._layout, ways, (*self._further, *axes))
        made._asked, made._views = self._asked, (*self._views, (dict(sizes), tuple(over)))
        return made

    def anew(self) -> DeviceMesh:
        """The mesh that was asked for, with its views, of its group as that is now: after the group
        was configured for other ranks, or made again, -1 is another size. Every rank of the group
        calls it. ConfigError for a part of a mesh, and where the sizes do not fit the ranks."""
        if self._asked is None:
            raise ConfigError(f"{self} is a part of a mesh: make that anew, and take it from there")
        shape, names, (device_type, overrides, strategies) = self._asked
        group = self._groups.root if self._groups.is_open else default_group()
        made = DeviceMesh(shape, names, group, device_type, overrides, strategies)
        for sizes, over in self._views:
            made = made.view(sizes, over)
        return made

    def abort(self) -> None:
        """End pending and later operations in all groups of the whole mesh that this rank is in,
        with CommAborted on all their ranks: those that hear of it do the same for the others."""
        self._groups.abort()

    @property
    def group(self) -> ProcessGroup:
        """The one that the whole mesh is made of."""
        return self._groups.root

    def measure(self, is_wanted: bool = True) -> None:
        """From now on count and time all operations of the groups of this mesh and its views, of
        which the group of all ranks may be the default group; or no more. Without it operations
        cost what they cost without a mesh."""
        self._groups.measure(is_wanted)

    def stats(self) -> dict[str, dict[str, OperationStats]]:
        """What was counted on this rank since measure(), by axis and operation: calls, bytes,
        latency, bandwidth. Axes with the same ranks have the same."""
        found = {axis.name: self._found(axis) for axis in self._known.axes}
        return {name: self._groups.stats(group) for name, group in found.items() if group}

    def is_in_node(self, mesh_dim: Dim | None = None) -> bool:
        """Whether all ranks along an axis are known to be on one machine. Makes its group."""
        group = self.get_group(mesh_dim)
        return group.is_in_node or group.world_size == 1

    @property
    def coordinate(self) -> dict[str, int]:
        """Where this rank stands along each axis, also those of views, by name."""
        return {axis.name: axis.index(self._place) for axis in self._known.axes}

    def flatten(self, mesh_dim_name: str | None = None) -> DeviceMesh:
        """The same ranks along one axis; its name is made of those of the axes unless it is given.

        Its backend and strategy are those of the first axis.
        """
        name = mesh_dim_name or "_".join(self._layout.names)
        ways = {name: self._ways[self._layout.names[0]]}
        return self._part(self._layout.flattened(name), ways)

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
        group = self._groups.get(self._members(axis), self._ways[axis.name], axis.name)
        if self.ndim > 1 and axis is self._layout.axes[-1]:
            self._groups.say_if_apart(axis, group)
        return group

    def alike(self, axes: Sequence[str] | DeviceMesh) -> ProcessGroup:
        """The group of those among this mesh's ranks that stand where this one does along other
        axes of the mesh that it is a part of, as `mesh["dp", "cp"].alike(["ep"])`: those who have
        the same experts. axes: their names, or a part of the same mesh that has them. KeyError for
        unknown names."""
        if isinstance(axes, DeviceMesh):
            known = [*axes._layout.axes]
        else:
            names = [axes] if isinstance(axes, str) else axes
            known = [(self._whole or self._known).axis(name) for name in names]
        places = tuple(
            place
            for place in self._layout.members(self._place)
            if all(axis.index(place) == axis.index(self._place) for axis in known)
        )
        names = self._layout.names
        return self._groups.get(places, self._ways[names[0]], "_".join(names))

    def is_part_with(self, other: DeviceMesh) -> bool:
        """Whether both are parts of one mesh, or of views of it."""
        return self._groups is other._groups

    def size_along(self, axis: str) -> int | None:
        """Number of ranks along an axis of the mesh that this is a part of; None if it has none of
        this name."""
        every = (self._whole or self._known).axes
        return next((each.size for each in every if each.name == axis), None)

    def get_all_groups(self) -> list[ProcessGroup]:
        """The groups of all axes, in their order."""
        return [self.get_group(name) for name in self._layout.names]

    def __eq__(self, other: object) -> bool:
        """Whether it is a view of the same mesh with the same axes."""
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return self._groups is other._groups and self._known == other._known

    def __hash__(self) -> int:
        return hash((id(self._groups), self._known))

    def __repr__(self) -> str:
        axes = ", ".join(f"{axis.name}={axis.size}" for axis in self._known.axes)
        return f"DeviceMesh({axes}; {self._device_type})"

    @property
    def _known(self) -> Layout:
        """Its axes, and those of views."""
        return Layout((*self._layout.axes, *self._further))

    def _part(
        self, layout: Layout, ways: Mapping[str, Way], further: tuple[Axis, ...] = ()
    ) -> DeviceMesh:
        part = object.__new__(DeviceMesh)
        part._be(layout, self._place, self._device_type, ways, self._groups, further)
        part._whole = None if further else self._whole or self._known
        return part

    def _members(self, axis: Axis) -> tuple[int, ...]:
        return Layout((axis,)).members(self._place)

    def _found(self, axis: Axis) -> ProcessGroup | None:
        return self._groups.found(self._members(axis), self._ways[axis.name])

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
