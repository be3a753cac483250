"""The ranks that have one model's tensors in parts."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, Self
from weakref import WeakValueDictionary

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.dispatch.ranks import Ranks
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.tensor.gathered_input import GatheredInput

DEFAULT_NAME = "tp"
EXPERTS_NAME = "ep"


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a mesh: its name in layouts, and its group. Copies of a layer have the same."""

    name: str
    group: ProcessGroup
    enter: GatheredInput = field(default_factory=GatheredInput, compare=False, repr=False)
    """Entry of inputs into the layers that are made along this axis together."""
    wholes: MutableMapping[int, Any] = field(
        default_factory=WeakValueDictionary, compare=False, repr=False
    )
    """Whole tensors that state_dict() has given last, by the id() of parameters."""

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        raise ConfigError(
            "a model of which ranks have parts cannot be pickled, as torch.save(model) does, for "
            "no other process has its groups: save tr.whole_state_dict(model) on rank 0, call "
            "tr.save_pretrained(model, path), or keep it with a tr.checkpoint.Checkpointer"
        )

    @property
    def size(self) -> int:
        """Number of ranks along it."""
        return self.group.world_size

    @property
    def index(self) -> int:
        """Return this rank's position along the axis."""
        return self.group.rank


@dataclass(frozen=True, slots=True)
class ExpertsAxis(Axis):
    """An axis along which ranks have different experts."""

    ranks: Ranks | None = field(default=None, compare=False, repr=False)


def has_experts(mesh: Any) -> bool:
    """Return whether a mesh has an axis along which ranks have experts."""
    return isinstance(mesh, DeviceMesh) and EXPERTS_NAME in mesh.coordinate


def experts_axis_of(mesh: Any) -> ExpertsAxis:
    """Return the axis along which ranks have experts. Raises ConfigError for a mesh that has
    none, or does not tell which ranks have the same tokens."""
    if not has_experts(mesh):
        raise ConfigError(
            f"experts go to ranks along an axis {EXPERTS_NAME!r}, and {mesh} has none: pass a "
            f"whole mesh that has one, as of mesh.view({{'edp': -1, 'ep': 2}}, over=('dp',))"
        )
    ranks = Ranks.on(mesh, EXPERTS_NAME)
    return ExpertsAxis(EXPERTS_NAME, ranks.experts, ranks=ranks)


def axis_beside(mesh: DeviceMesh) -> Axis:
    """Return the axis along which layers are cut of a mesh with experts. If there is none, it
    has this rank alone."""
    if DEFAULT_NAME in mesh.mesh_dim_names:
        return Axis(DEFAULT_NAME, mesh.get_group(DEFAULT_NAME))
    return Axis(DEFAULT_NAME, mesh.alike(mesh.mesh_dim_names))


def axis_of(mesh: Any) -> Axis:
    """Return the axis of a mesh with one; that called "tp" of a mesh with several; or a group's,
    under that name. None is the default group. Raises ConfigError for anything else, and for a
    mesh of several axes without that one."""
    if isinstance(mesh, Axis):
        return mesh
    if not isinstance(mesh, DeviceMesh):
        return Axis(DEFAULT_NAME, group_of(mesh))
    names = mesh.mesh_dim_names
    name = names[0] if len(names) == 1 else DEFAULT_NAME
    if name not in names:
        raise ConfigError(
            f"the mesh has the axes {', '.join(names)}, and none called {DEFAULT_NAME!r}: pass "
            f"the one along which the layers are cut, as mesh[{names[-1]!r}]"
        )
    return Axis(name, mesh.get_group(name))
