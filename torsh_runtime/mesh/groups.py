"""Manages the groups that all views of one mesh share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torsh_runtime.backends.base import BackendKind, BackendType, CommunicationStrategy
from torsh_runtime.comm.choosing import backend_type, by_device, get_default_backend_for_device
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import CommAborted, CommTimeout, ConfigError
from torsh_runtime.mesh.layout import Axis, Layout
from torsh_runtime.mesh.stats import Meter, OperationStats
from torsh_runtime.status import number_of, own_page

Dim = str | int
Overrides = Mapping[Dim, str | BackendType]
Strategies = Mapping[str, str] | str
_log = logging.getLogger("torsh_runtime")


class AxisBackend(NamedTuple):
    """Describes how the ranks along an axis communicate."""

    kind: BackendKind
    strategy: str | None
    """The strategy; None for the value of TORSH_ALGORITHM."""


class Groups:
    """Creates each group on first use, and shares it among axes with the same ranks and way."""

    def __init__(self, root: ProcessGroup) -> None:
        """Start from the mesh's group `root`, whose ranks are the mesh's places."""
        self.root = root
        self._where: Sequence[str] = [""] * root.world_size
        self.ranks, self._session = root.ranks, root.session
        self._name = root.session.name(f"{root.name}/mesh", root.ranks)
        self._lock = threading.Lock()
        self._making: dict[tuple[object, ...], threading.Lock] = {}
        self._made: dict[tuple[object, ...], ProcessGroup] = {}
        self._meters: dict[ProcessGroup, Meter] | None = None
        self._has_said = False

    def stand(self, layout: Layout) -> None:
        """Record where ranks are in the whole mesh, for errors and for torshrun."""
        self._where = [layout.text(place) for place in range(self.root.world_size)]
        self._name_ranks(self.root, range(self.root.world_size))
        page = own_page()
        if page is not None:
            page.note_place(self._where[self.root.rank])

    def get(self, places: tuple[int, ...], way: AxisBackend, axis: str) -> ProcessGroup:
        """Return the group of these places in this order, creating it if needed.

        axis: what errors call the group if it is created now.

        Raises CommAborted if the mesh's group was reconfigured.
        """
        self._session.check_open()
        if self.root.ranks is not self.ranks:
            raise CommAborted(
                "the mesh's group was configured since, for other ranks: make another mesh of it, "
                "by anew() for one"
            )
        if self._is_root(places, way):
            return self._metered(self.root)
        key = (way, *places)
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:  # one lock per group: peers may create others first, in other threads
            if key not in self._made:
                self._made[key] = self._make(places, way, axis)
            return self._metered(self._made[key])

    def say_if_apart(self, axis: Axis, group: ProcessGroup) -> None:
        """Warn once if the last axis of a mesh spans several nodes."""
        if group.is_in_node or group.world_size == 1 or self._has_said:
            return
        self._has_said = True
        _log.warning(
            "the last axis of the mesh, %r, goes over several nodes with the ranks %s: put the "
            "axis that communicates most there, with a size that divides the ranks of a node",
            axis.name,
            ", ".join(map(str, group.ranks)),
        )

    def abort(self) -> None:
        """Abort pending operations in all groups; peers that learn of it do the same."""
        with self._lock:
            groups = [*self._made.values(), self.root]
        for group in groups:
            group.abort()

    def measure(self, is_wanted: bool) -> None:
        """Start or stop counting the calls of all groups."""
        with self._lock:
            groups = [self.root, *self._made.values()]
            self._meters = {} if is_wanted else None
        for group in groups:
            if is_wanted:
                self._metered(group)
            else:
                group.observe(None)

    def stats(self, group: ProcessGroup) -> dict[str, OperationStats]:
        """Return what was counted for a group, by operation."""
        meter = (self._meters or {}).get(group)
        return {} if meter is None else meter.stats()

    def found(self, places: tuple[int, ...], way: AxisBackend) -> ProcessGroup | None:
        """Return the group if it has been created."""
        if self._is_root(places, way):
            return self.root
        return self._made.get((way, *places))

    @property
    def is_open(self) -> bool:
        """Return whether the group can still be used. The default group is, even if
        reconfigured."""
        return not self._session.is_closed or self.root.session is not self._session

    def _is_root(self, places: tuple[int, ...], way: AxisBackend) -> bool:
        own = AxisBackend(backend_type(self.root.backend), None)
        return places == tuple(range(self.root.world_size)) and way == own

    def _make(self, places: tuple[int, ...], way: AxisBackend, axis: str) -> ProcessGroup:
        ranks, root = [self.ranks[place] for place in places], self.root
        try:
            group = self._session.group(self._name, ranks, way.kind, root.timeout, way.strategy)
        except CommTimeout as error:
            raise self._of_axis(error, places, axis) from error
        self._name_ranks(group, places, axis)
        return group

    def _of_axis(self, error: CommTimeout, places: Sequence[int], axis: str) -> CommTimeout:
        """Return the same error, naming the ranks of the mesh that did not join."""
        missing = [places[each] for each in error.missing]
        names = "; ".join(f"rank {self.ranks[each]}, {self._where[each]}" for each in missing)
        detail = f" to make the group of axis {axis} ({names}; they may have asked for another one)"
        found = CommTimeout(error.op, error.sequence, error.seconds, error.missing, detail)
        found.members = error.members
        return found

    def _name_ranks(self, group: ProcessGroup, places: Sequence[int], axis: str = "") -> None:
        where = [self._where[place] for place in places]
        if any(where):
            names = zip(group.ranks, where, strict=True)
            group.name_ranks([f"rank {rank}, {text}" for rank, text in names], axis)
        page = own_page()
        if page is not None and axis:
            page.note_axis(number_of(group.name), axis)
        group.note_title(axis)

    def _metered(self, group: ProcessGroup) -> ProcessGroup:
        """Return the group, with its calls counted if that is wanted."""
        if self._meters is not None and group not in self._meters:
            meter = self._meters[group] = Meter()
            group.observe(meter.around)
        return group


def ways_of(
    names: Sequence[str],
    device_type: str,
    root: ProcessGroup,
    overrides: Overrides,
    strategies: Strategies | None,
) -> dict[str, AxisBackend]:
    """Return how each axis communicates. Raises ConfigError for unknown axes, backends or
    strategies."""
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
    told = dict.fromkeys(names, strategies) if isinstance(strategies, str) else strategies or {}
    return {
        name: AxisBackend(kinds[name], _strategy(name, told.get(name), kinds[name]))
        for name in _known(names, told)
    }


def _known(names: Sequence[str], told: Mapping[str, str]) -> Sequence[str]:
    unknown = sorted(told.keys() - {*names})
    if unknown:
        raise ConfigError(
            f"comm_strategy has {', '.join(unknown)}; the mesh has the axes {', '.join(names)}"
        )
    return names


def _strategy(name: str, told: str | None, kind: BackendKind) -> str | None:
    if told is None:
        return None
    if told not in [*CommunicationStrategy]:
        raise ConfigError(
            f"comm_strategy {told!r} of axis {name!r} is none of {', '.join(CommunicationStrategy)}"
        )
    if kind not in (BackendType.NATIVE, BackendType.SINGLE):
        raise ConfigError(
            f"comm_strategy of axis {name!r}: the backend {kind} chooses its own, leave it out"
        )
    return str(told)


def _default_backend(device_type: str) -> str:
    try:
        return get_default_backend_for_device(device_type)
    except ValueError as error:
        raise ConfigError(f"device_type {device_type!r}: {error}") from None
