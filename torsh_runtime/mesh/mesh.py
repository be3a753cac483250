"""Defines DeviceMesh: the ranks of a group along named axes, and groups along each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torsh_runtime.comm.agreement import agree
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.mesh.coordinates import Coordinates
from torsh_runtime.mesh.groups import AxisBackend, Dim, Groups, Overrides, Strategies, ways_of
from torsh_runtime.mesh.layout import Axis, Layout, resolved
from torsh_runtime.mesh.stats import OperationStats


class DeviceMesh(Coordinates):
    """Arranges the ranks of a group along named axes. Pass it on explicitly: none is "current".

    `mesh["dp"]` and `mesh["dp", "tp"]` are meshes of these axes around this rank. `flatten()` joins
    a mesh's axes into one, and `view()` adds axes for the same ranks. The group along an axis is
    created on first use, in which all its ranks must take part. Axes with the same ranks share a
    group; an axis with all ranks of the mesh's group uses that group, and one of size 1 needs no
    peers. The groups end with the default group.

    Example:
        ```python
        mesh = tr.DeviceMesh((2, 2, -1), ("pp", "dp", "tp"))
        tr.all_reduce(gradient, group=mesh.get_group("dp"))
        stage = mesh["dp", "tp"].flatten()  # the ranks with this rank's index along "pp"
        tr.barrier(stage.get_group())
        ```
    """

    _further: tuple[Axis, ...]
    """Axes of views: further names for the same ranks."""
    _whole: Layout | None = None
    """Axes of the mesh that this mesh is a part of; None if it is no part."""
    _asked: tuple[Any, ...] | None = None
    """Shape, names and options as they were given; None for a part of a mesh."""
    _views: tuple[tuple[Mapping[str, int], tuple[str, ...]], ...] = ()
    """For each view the sizes of its axes, and the axes that it divides."""

    def __init__(
        self,
        mesh_shape: Sequence[int],
        mesh_dim_names: Sequence[str] | None = None,
        group: ProcessGroup | None = None,
        device_type: str = "cpu",
        backend_override: Overrides | None = None,
        comm_strategy: Strategies | None = None,
    ) -> None:
        """Create a mesh. All ranks of the group call it and check that their arguments agree.

        Args:
            mesh_shape: Sizes that multiply to the number of ranks; one may be -1. Ranks are
                numbered along the last axis first, so that it stays within a node if possible. If
                it does not, a warning is logged.
            mesh_dim_names: Names of the axes. None is dim_0, dim_1 and so on.
            group: The ranks, in its order. None is the default group.
            device_type: Where arrays are stored, "cpu" or "cuda", which determines the groups'
                backend: that of `group` if it supports the device.
            backend_override: A different backend for some axes, by name or number.
            comm_strategy: How ranks of several nodes carry out collectives, for all axes or by
                name: "adaptive", "standard", "ring", "tree" or "hierarchical". The default is
                TORSH_ALGORITHM.

        Raises:
            ConfigError: For arguments that do not fit, on all ranks if they differ.
            CommError: If the exchange among the ranks fails.
        """
        root = group or default_group()
        groups = Groups(root)  # raises on ranks outside the group
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
        ways: Mapping[str, AxisBackend],
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
        """Return the mesh of these axes, in this order, around this rank.

        Args:
            names: The name of an axis, or a tuple of names.

        Raises:
            KeyError: For unknown axes.

        Example:
            ```python
            data = mesh["dp", "cp"]
            ```
        """
        wanted = names if isinstance(names, tuple | list) else (names,)
        return self._part(self._known.select(wanted), self._ways)

    def view(self, sizes: Mapping[str, int], over: Sequence[str]) -> DeviceMesh:
        """Return this mesh with additional axes that divide the ranks along the axes `over`.

        The ranks along `over`, in row-major order, are laid out along the new axes. Axes with the
        same ranks share their group.

        Args:
            sizes: Names and sizes of the new axes; one size may be -1.
            over: Names of the axes whose ranks are divided.

        Raises:
            ConfigError: For names that exist already and for sizes that do not fit.
            KeyError: For unknown axes in `over`.

        Example:
            ```python
            experts = mesh.view({"edp": 2, "ep": -1}, over=("dp", "cp", "tp"))["ep"]
            ```
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
        """Create the mesh again, with its views, for the current ranks of its group.

        Use it after the group was reconfigured or created again; a size of -1 is then computed
        anew. Every rank of the group calls it.

        Returns:
            The new mesh.

        Raises:
            ConfigError: For a part of a mesh, and if the sizes do not fit the ranks.

        Example:
            ```python
            tr.group.WORLD.configure(store, "", rank, world_size, quorum_id=2)
            mesh = mesh.anew()
            ```
        """
        if self._asked is None:
            raise ConfigError(
                f"{self} is a part of a mesh: call anew() of the whole mesh and take the part "
                f"of the result"
            )
        shape, names, (device_type, overrides, strategies) = self._asked
        group = self._groups.root if self._groups.is_open else default_group()
        made = DeviceMesh(shape, names, group, device_type, overrides, strategies)
        for sizes, over in self._views:
            made = made.view(sizes, over)
        return made

    def abort(self) -> None:
        """Abort pending and later operations in all groups of the whole mesh that this rank is in.

        They raise CommAborted on all ranks of these groups, which then abort their other groups,
        too.

        Example:
            ```python
            try:
                step()
            except tr.CommError:
                mesh.abort()
                raise
            ```
        """
        self._groups.abort()

    @property
    def group(self) -> ProcessGroup:
        """Return the group that the whole mesh is made of."""
        return self._groups.root

    def measure(self, is_wanted: bool = True) -> None:
        """Start or stop measuring all operations of the groups of this mesh and its views.

        They are counted and timed; see stats(). The group of all ranks may be the default group.
        Without measuring, operations have no overhead from the mesh.

        Args:
            is_wanted: Whether to measure; False stops it.

        Example:
            ```python
            mesh.measure()
            train()
            print(mesh.stats())
            ```
        """
        self._groups.measure(is_wanted)

    def stats(self) -> dict[str, dict[str, OperationStats]]:
        """Return what was counted on this rank since measure(), by axis and operation.

        Axes with the same ranks share their counts.

        Returns:
            For each axis and operation calls, bytes, seconds, latency (seconds) and bandwidth
                (bytes per second).

        Example:
            ```python
            mesh.measure()
            train()
            print(mesh.stats()["dp"]["all_reduce"].seconds)
            ```
        """
        found = {axis.name: self._found(axis) for axis in self._known.axes}
        return {name: self._groups.stats(group) for name, group in found.items() if group}

    def is_in_node(self, mesh_dim: Dim | None = None) -> bool:
        """Return whether all ranks along an axis are known to be on one machine.

        It creates the axis's group.

        Args:
            mesh_dim: As get_group().

        Raises:
            ConfigError: As get_group().
            KeyError: As get_group().
            BackendUnavailable: As get_group().
            CommTimeout: As get_group().

        Example:
            ```python
            if mesh.is_in_node("tp"):
                print("tensor parallelism does not use the network")
            ```
        """
        group = self.get_group(mesh_dim)
        return group.is_in_node or group.world_size == 1

    def flatten(self, mesh_dim_name: str | None = None) -> DeviceMesh:
        """Return a mesh with the same ranks along one axis.

        Backend and strategy are those of the first axis.

        Args:
            mesh_dim_name: The axis's name; None is the axes' names joined by "_".

        Example:
            ```python
            replicas = mesh["dp", "cp"].flatten()
            tr.all_reduce(gradient, group=replicas.get_group())
            ```
        """
        name = mesh_dim_name or "_".join(self._layout.names)
        ways = {name: self._ways[self._layout.names[0]]}
        return self._part(self._layout.flattened(name), ways)

    def get_group(self, mesh_dim: Dim | None = None) -> ProcessGroup:
        """Return the group of this rank and the ranks that differ from it only along this axis.

        The first use creates it, in which all these ranks must take part.

        Args:
            mesh_dim: The axis, by name or number; None if there is only one.

        Raises:
            ConfigError: If `mesh_dim` is None and there are several axes, and as new_group().
            KeyError: For an unknown axis.
            BackendUnavailable: As new_group().
            CommTimeout: If ranks did not come; it names them.

        Example:
            ```python
            tr.all_reduce(gradient, group=mesh.get_group("dp"))
            ```
        """
        axis = self._axis(mesh_dim)
        group = self._groups.get(self._members(axis), self._ways[axis.name], axis.name)
        if self.ndim > 1 and axis is self._layout.axes[-1]:
            self._groups.say_if_apart(axis, group)
        return group

    def alike(self, axes: Sequence[str] | DeviceMesh) -> ProcessGroup:
        """Return the group of this mesh's ranks that share this rank's index along other axes.

        Args:
            axes: Names of axes of the mesh that this is a part of, or a different part of it with
                these axes.

        Raises:
            KeyError: For unknown names.

        Example:
            ```python
            mesh["dp", "cp"].alike(["ep"])  # the ranks with the same experts
            ```
        """
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
        """Return whether this mesh and `other` are parts of one mesh or of its views."""
        return self._groups is other._groups

    def size_along(self, axis: str) -> int | None:
        """Return the size of an axis of the whole mesh, or None if it has no axis of this name."""
        every = (self._whole or self._known).axes
        return next((each.size for each in every if each.name == axis), None)

    def get_all_groups(self) -> list[ProcessGroup]:
        """Return the groups of all axes, in their order.

        Raises:
            ConfigError: As get_group().
            BackendUnavailable: As get_group().
            CommTimeout: As get_group().
        """
        return [self.get_group(name) for name in self._layout.names]

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is a view of the same mesh with the same axes."""
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return self._groups is other._groups and self._known == other._known

    def __hash__(self) -> int:
        return hash((id(self._groups), self._known))

    def __repr__(self) -> str:
        axes = ", ".join(f"{axis.name}={axis.size}" for axis in self._known.axes)
        return f"DeviceMesh({axes}; {self._device_type})"

    def _part(
        self, layout: Layout, ways: Mapping[str, AxisBackend], further: tuple[Axis, ...] = ()
    ) -> DeviceMesh:
        part = object.__new__(DeviceMesh)
        part._be(layout, self._place, self._device_type, ways, self._groups, further)
        part._whole = None if further else self._whole or self._known
        return part

    def _members(self, axis: Axis) -> tuple[int, ...]:
        return Layout((axis,)).members(self._place)

    def _found(self, axis: Axis) -> ProcessGroup | None:
        return self._groups.found(self._members(axis), self._ways[axis.name])
