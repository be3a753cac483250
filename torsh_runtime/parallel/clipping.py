"""Norms of gradients of a model on a mesh: each element counts once."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.modules import adapter_class
from torsh_runtime.modules.base import ModuleAdapter
from torsh_runtime.parallel.agreement import texts_of_all
from torsh_runtime.parallel.fsdp.wrapper import wrappers_of
from torsh_runtime.parallel.layouts import coordinate_on, layouts_by_id, stage_ranks_of
from torsh_runtime.parallel.norms import joined, norm_of, power_sum, together

_log = logging.getLogger("torsh_runtime")
_ROUNDED = 1e-4
"""By which part of them norms may differ where kernels add up in any order."""
STAGES = "pp"
"""The axis along which ranks have different parameters."""


class _Spread(NamedTuple):
    """Over whom the elements of a parameter are spread."""

    axes: tuple[str, ...]
    group: ProcessGroup | None
    """That a FullyShardedDataParallel has sharded it over."""


_Sums = dict[_Spread, float]


def clip_grad_norm_(
    model: Any, max_norm: float, mesh: DeviceMesh | None = None, norm_type: float = 2.0
) -> float:
    """Scale the gradients of a model of either framework so that their norm, as of one vector of
    the whole model, is at most max_norm. Returns what it was, the same bits on all ranks.

    The model, not its parameters: its modules tell of layouts (parallel/layouts.py), so that what
    is sharded over axes of the mesh is added up over these, what several ranks have counts once,
    and stages of a pipeline, or of what is along "pp", are added up, of which several may have a
    parameter of one name. What a FullyShardedDataParallel in it has sharded is added up over its
    group. Sums are formed in float64. All ranks of the mesh call it, when the gradients have been
    averaged; a warning is logged if they then do not come to the same.

    Raises TypeError for what is no model, ConfigError for layouts that do not fit the mesh.
    """
    adapter = adapter_class(model)(model)
    stages = _stages(model, mesh)
    sums = _own_sums(adapter, mesh, _counted_before(adapter, stages), norm_type)
    for group in dict.fromkeys(spread.group for spread in sums):
        if group is not None:
            over = [spread for spread in sums if spread.group is group]
            _add_up(sums, over, group, norm_type)
    for axis in () if mesh is None else mesh.coordinate:
        over = [spread for spread in sums if axis in spread.axes]
        if over and mesh is not None:
            _add_up(sums, over, mesh.get_group(axis), norm_type)
    own = joined([*sums.values()], norm_type)
    total = norm_of(together(stages, [own], norm_type) if stages else [own], norm_type)
    if mesh is not None:
        _warn_if_apart(total, mesh)
    factor = max_norm / (total + 1e-6)
    if not factor >= 1:  # nor for what is no number, which one process would not hide either
        for _, parameter in adapter.parameters():
            gradient = adapter.gradient(parameter)
            if gradient is not None:
                adapter.scale(gradient, factor)
    return total


def _warn_if_apart(total: float, mesh: DeviceMesh) -> None:
    """Tell if ranks do not have the same gradients of what they all have."""
    group = mesh.flatten().get_group()
    own = np.array([total]).view(np.int64)
    told = group.all_gather_numbers(own).view(np.float64)[:, 0]
    lowest, highest = float(told.min()), float(told.max())
    if group.rank == 0 and highest - lowest > _ROUNDED * highest:
        _log.warning(
            "the norm of the gradients is %.6g on rank %d and %.6g on rank %d: ranks have other "
            "gradients of parameters that all of them have, which were not averaged, or are of a "
            "part of what the ranks compute. tr.verify() names the first",
            *(lowest, group.ranks[int(told.argmin())], highest, group.ranks[int(told.argmax())]),
        )


def _own_sums(
    adapter: ModuleAdapter[Any], mesh: DeviceMesh | None, before: set[str], norm_type: float
) -> _Sums:
    """This rank's power sums, with 0 for what others count: all ranks have the same keys."""
    layouts, groups = layouts_by_id(adapter.module), _groups(adapter)
    gradients: dict[_Spread, list[Any]] = {}
    for name, parameter in adapter.parameters():
        layout = layouts.get(id(parameter))
        axes = () if layout is None else layout.sharded()
        own = gradients.setdefault(_Spread(axes, groups.get(id(parameter))), [])
        is_first = layout is None or layout.is_first(coordinate_on(mesh, name, layout))
        gradient = adapter.gradient(parameter)
        if gradient is not None and is_first and name not in before:
            own.append(gradient)
    return {spread: power_sum(adapter, own, norm_type) for spread, own in gradients.items()}


def _add_up(sums: _Sums, over: list[_Spread], group: ProcessGroup, norm_type: float) -> None:
    found = together(group, [sums[spread] for spread in over], norm_type)
    sums.update(zip(over, found, strict=True))


def _groups(adapter: ModuleAdapter[Any]) -> dict[int, ProcessGroup]:
    """Over whom wrappers have sharded parameters, by id()."""
    wrappers = wrappers_of(adapter.module)
    return {key: group for each in wrappers for key, group in each.sharded().items()}


def _stages(model: Any, mesh: DeviceMesh | None) -> ProcessGroup | None:
    """The ranks with the other parts of the model, if there are any."""
    group = stage_ranks_of(model)
    if group is not None:
        return group if group.world_size > 1 else None
    if mesh is None or STAGES not in mesh.coordinate or mesh.size(STAGES) == 1:
        return None
    return mesh.get_group(STAGES)


def _counted_before(adapter: ModuleAdapter[Any], stages: ProcessGroup | None) -> set[str]:
    """Names of parameters that earlier stages have, too: of tied ones each stage has a copy."""
    if stages is None:
        return set()
    told = texts_of_all(stages, "\n".join(name for name, _ in adapter.parameters()))
    return {name for text in told[: stages.rank] for name in text.splitlines()}
