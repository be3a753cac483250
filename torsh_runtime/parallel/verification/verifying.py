"""A model in one process beside the same model spread over ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.modules import adapter_class
from torsh_runtime.parallel.fsdp.wrapper import FullyShardedDataParallel
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.tensor import parallelize
from torsh_runtime.parallel.verification.comparison import Comparison, Norm
from torsh_runtime.parallel.verification.difference import Verification
from torsh_runtime.parallel.verification.judging import judged

Plan = Mapping[str, Any] | Callable[[Any], Any]


def verify(
    model: Any,
    mesh: DeviceMesh | ProcessGroup | None,
    plan: Plan,
    batch: Any,
    *,
    data_axes: Sequence[str] = ("dp",),
    norm: Norm | None = None,
    tolerance: float | None = None,
) -> Verification:
    """Run the model as it is beside a copy that is spread, and compare all that both compute.

    model: of torch or torsh_runtime.nn, the same on all ranks, small enough that each rank can hold
        it twice. It stays as it is.
    mesh: whose ranks call this together; a group, or None for the default one, is an axis "tp".
    plan: as parallelize() takes; or a function that spreads the model that it is given and returns
        it, wrapped in a DistributedDataParallel or not.
    batch: what the model is called with, a tensor or a tuple of them, the same on all ranks. Along
        data_axes each rank takes its rows of it.
    norm: gives the norm of the spread model's gradients; None: clip_grad_norm_() on the mesh.
    tolerance: of differences, relative to the size of such values; None: from the dtype.

    The outputs are weighed with fixed random numbers for the backward pass, so no loss is needed; a
    model may return one. Compared are parameters, outputs of modules, their gradients, those of the
    parameters, and the norm; and dropout: with nn its masks are those of one process, with torch
    masks must be alike on ranks that have the same and must not be on ranks that have parts.

    Returns what differs, the same on all ranks. Raises what the model and parallelize() raise, and
    ConfigError for a batch whose rows the data axes do not divide and for a model with an FSDP.
    """
    whole_mesh = mesh if isinstance(mesh, DeviceMesh) else _of_one_axis(group_of(mesh))
    spread = _spread(copy.deepcopy(model), mesh, plan)
    found = Comparison(whole_mesh, model, spread, data_axes, batch)
    pairs = [*found.pairs(norm)]
    rate = found.tolerance() if tolerance is None else tolerance
    differences = [*found.masks(), *judged(pairs, found.place, rate)]
    return Verification(compared=len(pairs), differences=tuple(differences))


def _of_one_axis(group: ProcessGroup) -> DeviceMesh:
    return DeviceMesh((group.world_size,), ("tp",), group)


def _spread(model: Any, mesh: Any, plan: Plan) -> Any:
    spread = plan(model) if callable(plan) else parallelize(model, mesh, plan)
    adapter = adapter_class(spread)(spread)
    if any(isinstance(module, FullyShardedDataParallel) for _, module in adapter.modules()):
        raise ConfigError("verify() cannot look into a FullyShardedDataParallel: leave it out")
    return spread
