"""Norms of gradients of a model on a mesh: each element counts once."""

from __future__ import annotations

import logging
import math
from collections.abc import Set
from typing import Any, NamedTuple

import numpy as np

from torsh_runtime.comm.agreement import texts_of_all
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework import Module, framework_of_model
from torsh_runtime.framework.models import trained_parameters
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.fsdp.sharding import shardings_of
from torsh_runtime.parallel.layouts import coordinate_on, layouts_by_id, stages_in
from torsh_runtime.parallel.norms import (
    joined,
    norm_of,
    power_sums,
    scale,
    together,
    together_in_lines,
)

_log = logging.getLogger("torsh_runtime")
_ROUNDED = 1e-4
"""Relative difference that norms may have because kernels add up in any order."""
STAGES = "pp"
"""The axis along which ranks have different parameters."""


class _Spread(NamedTuple):
    """Over whom the elements of a parameter are spread."""

    axes: tuple[str, ...]
    group: ProcessGroup | None
    """Group that a FullyShardedDataParallel has sharded it over."""


_Sums = dict[_Spread, float]


class _Reduction(NamedTuple):
    """Describes which sums are added up over which group."""

    group: ProcessGroup
    over: list[_Spread] | None
    """None: all, which stages have of different kinds, as one number."""


def clip_grad_norm_(
    model: Module, max_norm: float, mesh: DeviceMesh | None = None, norm_type: float = 2.0
) -> float:
    """Scale a model's gradients so that their norm is at most `max_norm`, and return what it was.

    The norm is that of the gradients as one vector of the whole model, of either framework. It
    takes the model, not its parameters, because its modules have layouts (parallel/layouts.py):
    what is sharded over axes of the mesh is added up over these, what several ranks have counts
    once, and stages of a pipeline, or of what is along "pp", are added up, of which several may
    have a parameter of one name. What FSDP, by either spelling, has sharded is added up over its
    group. Sums are formed in float64; on GPUs the norms of single gradients in float32, unless
    these are float64, with one wait for the GPU.

    All ranks of the mesh call it, after the gradients have been averaged. If norms differ by more
    than 1e-4 of the largest, a warning is logged and each rank uses its own; otherwise the result
    has the same bits on all ranks.

    Args:
        model: The model, wrapped or not.
        max_norm: The largest norm that gradients keep.
        mesh: The mesh that the model is on; None if it is on none.
        norm_type: The exponent p of the norm; inf is the largest absolute value.

    Returns:
        The norm before scaling.

    Raises:
        TypeError: If `model` is no model.
        ConfigError: For layouts that do not fit the mesh, and for a `norm_type` that is not > 0.
        CommError: If an exchange among the ranks fails.

    Example:
        ```python
        loss(model(batch)).backward()
        norm = tr.clip_grad_norm_(model, max_norm=1.0, mesh=mesh)
        optimizer.step()
        ```
    """
    framework_of_model(model)  # TypeError for what is none
    stages, earlier = _stages(model, mesh)
    sums = _own_sums(model, mesh, earlier, norm_type)
    total = _total(sums, _reductions(sums, mesh, stages), mesh, norm_type)
    factor = max_norm / (total + 1e-6)
    if not factor >= 1:  # nor for what is no number, which one process would not hide either
        parameters = [parameter for _, parameter in trained_parameters(model)]
        scale([each.grad for each in parameters if each.grad is not None], factor)
    return total


def _reductions(
    sums: _Sums, mesh: DeviceMesh | None, stages: ProcessGroup | None
) -> list[_Reduction]:
    """Return the reductions in the order that all ranks have."""
    groups = dict.fromkeys(spread.group for spread in sums if spread.group is not None)
    found = [_Reduction(group, [each for each in sums if each.group is group]) for group in groups]
    for axis in () if mesh is None else mesh.coordinate:
        over = [each for each in sums if axis in each.axes]
        if over and mesh is not None:
            found.append(_Reduction(mesh.get_group(axis), over))
    found += [] if stages is None else [_Reduction(stages, None)]
    return [each for each in found if each.group.world_size > 1]


def _total(
    sums: _Sums, reductions: list[_Reduction], mesh: DeviceMesh | None, norm_type: float
) -> float:
    """Return the norm. With a mesh all its ranks exchange their norms. If the last reduction is
    over some of these ranks, such as along an axis, it shares that exchange."""
    everyone = None if mesh is None else mesh.flatten().get_group()
    last: _Reduction | None = None
    if everyone is not None and reductions and {*reductions[-1].group.ranks} <= {*everyone.ranks}:
        *reductions, last = reductions
    for group, over in reductions:
        if over is None:
            (whole,) = together(group, [joined([*sums.values()], norm_type)], norm_type)
            sums = {_Spread((), None): whole}
        else:
            found = together(group, [sums[spread] for spread in over], norm_type)
            sums.update(zip(over, found, strict=True))
    if everyone is None:
        return norm_of([*sums.values()], norm_type)
    line, over = last or (None, [])
    own = [*sums] if over is None else over
    part = joined([sums[spread] for spread in own], norm_type)
    rest = joined([each for spread, each in sums.items() if spread not in own], norm_type)
    totals = together_in_lines(everyone, line, part, rest, norm_type)
    return _agreed([norm_of([each], norm_type) for each in totals], everyone)


def _agreed(norms: list[float], everyone: ProcessGroup) -> float:
    """Return one norm for all ranks, whose gradients of common parameters may differ by
    rounding. If they differ by more, return this rank's and log a warning. A norm that is not
    finite on one rank is not finite on any."""
    lowest, highest = min(norms), max(norms)
    if not all(map(math.isfinite, norms)):
        return float(np.max(norms))
    if highest - lowest <= _ROUNDED * highest:
        return norms[0]
    if everyone.rank == 0:
        _log.warning(
            "the norm of the gradients is %.6g on rank %d and %.6g on rank %d: ranks have other "
            "gradients of parameters that all of them have, which were not averaged, or are of a "
            "part of what the ranks compute. tr.verify() names the first",
            *(lowest, everyone.ranks[norms.index(lowest)]),
            *(highest, everyone.ranks[norms.index(highest)]),
        )
    return norms[everyone.rank]


def _own_sums(model: Module, mesh: DeviceMesh | None, earlier: Set[int], norm_type: float) -> _Sums:
    """Return this rank's power sums, with 0 for what other ranks count: all ranks have the same
    keys."""
    layouts, groups = layouts_by_id(model), _groups(model)
    gradients: dict[_Spread, list[Any]] = {}
    for name, parameter in trained_parameters(model):
        layout = layouts.get(id(parameter))
        axes = () if layout is None else layout.sharded()
        own = gradients.setdefault(_Spread(axes, groups.get(id(parameter))), [])
        is_first = layout is None or layout.is_first(coordinate_on(mesh, name, layout))
        gradient = parameter.grad
        if gradient is not None and is_first and id(parameter) not in earlier:
            own.append(gradient)
    sums = power_sums([*gradients.values()], norm_type)
    return dict(zip(gradients, sums, strict=True))


def _groups(model: Module) -> dict[int, ProcessGroup]:
    """Return the groups over which parameters are sharded by FSDP, by id()."""
    found = shardings_of(model)
    return {key: group for each in found for key, group in each.sharded().items()}


def _stages(model: Module, mesh: DeviceMesh | None) -> tuple[ProcessGroup | None, Set[int]]:
    """Return the ranks with the other parts of the model, if there are any, and the id() of
    parameters that earlier ones of them have as well: each has a copy of a tied parameter."""
    found = stages_in(model)
    if found is not None:
        stage, told_by = found
        return told_by.group, _named(stage, told_by.earlier)
    if mesh is None or STAGES not in mesh.coordinate or mesh.size(STAGES) == 1:
        return None, frozenset()
    group = mesh.get_group(STAGES)
    told = texts_of_all(group, "\n".join(name for name, _ in trained_parameters(model)))
    names = {name for text in told[: group.rank] for name in text.splitlines()}
    return group, _named(model, names)


def _named(model: Module, names: Set[str]) -> Set[int]:
    return {id(parameter) for name, parameter in trained_parameters(model) if name in names}
