"""Finds the ranks that have the same of each parameter, over which its gradient is averaged."""

from __future__ import annotations

from collections.abc import Sequence, Set
from math import prod
from typing import Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, Tensor
from torsh_runtime.framework.models import all_parameters
from torsh_runtime.layout import TensorLayout
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.agreement import model_told, send_from
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.layouts import check_replicas, sharded_by_id


class Replicas:
    """Finds the replicas of one model's parameters, among the ranks that data parallelism is over.
    If something is sharded along an axis of the mesh, as experts are, only ranks at the same place
    along it have the same.

    Attributes: given (what it was made of), group (all these ranks), groups (that one, and those
    of parameters that fewer of them have).
    """

    def __init__(self, model: Module, given: Any) -> None:
        """Find the replicas. given: a part of a mesh, as mesh["dp", "cp"], or what group_of()
        takes.

        Raises ConfigError for a model of which these ranks have different parts and the same
        batches, and for one that is sharded along axes which `given` does not tell of.
        """
        self.given, self.group = given, group_of(given)
        self._model = model
        self._fewer: dict[int, ProcessGroup] = {}
        layouts = self._layouts = sharded_by_id(model)
        alike = check_replicas(model, self.group)
        for name, parameter in all_parameters(model):
            if id(parameter) in layouts and id(parameter) not in alike:
                found = _replicas(name, layouts[id(parameter)], given, self.group)
                if found is not self.group:
                    self._fewer[id(parameter)] = found
        self.groups = [*dict.fromkeys((self.group, *self._fewer.values()))]

    def of(self, parameter: Tensor) -> ProcessGroup:
        """Return the group of this rank and the others that have the same of a parameter."""
        return self._fewer.get(id(parameter), self.group)

    def size_of(self, parameter: Tensor) -> int:
        """Return the number of the parameter's elements, equal on all ranks of the mesh: for
        what is sharded, maybe unevenly, an equal part rounded up."""
        layout = self._layouts.get(id(parameter))
        if layout is None:
            return prod(tuple(parameter.shape))
        sharded = layout.sharded()
        return -(-prod(layout.shape) // prod(n for axis, n, _ in layout.axes if axis in sharded))

    def told(self, with_all: bool, without: Set[int] = frozenset()) -> dict[str, object]:
        """Return what agree() compares of the model in `group`: see model_told()."""
        whole = {key: self._layouts[key] for key in self._fewer}
        named = all_parameters(self._model)
        fewer = [name for name, parameter in named if id(parameter) in whole]
        lie = {"parameters of fewer ranks": ", ".join(fewer)} if fewer else {}
        return {**lie, **model_told(self._model, with_all, without, whole)}

    def send(self, rank: int, tensors: Sequence[Any]) -> None:
        """Give everyone the values of this rank of the group; of what fewer have, of the first of
        those."""
        for group in self.groups:
            own = [tensor for tensor in tensors if self.of(tensor) is group]
            send_from(rank if group is self.group else 0, own, group)


def _replicas(name: str, layout: TensorLayout, given: Any, group: ProcessGroup) -> ProcessGroup:
    """Return the ranks that have the same of this parameter. Raises ConfigError if that is
    unknown."""
    axes = layout.sharded()
    sizes = {axis: size for axis, size, _ in layout.axes if axis in axes}
    if group.world_size == 1:
        return group
    if isinstance(given, DeviceMesh) and all(given.size_along(a) == n for a, n in sizes.items()):
        found = given.alike(axes)
        return group if found.ranks == group.ranks else found
    said = given if given is None or isinstance(given, DeviceMesh) else type(given).__name__
    told = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
    raise ConfigError(
        f"{name!r} is sharded over a mesh with {told}, and process_group={said} does not tell "
        f"who has the same part of it: pass the axes along which batches differ of the mesh that "
        f"the model was made for, as process_group=mesh['dp'] or mesh['dp', 'cp']"
    )
