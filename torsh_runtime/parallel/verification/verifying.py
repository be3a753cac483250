"""Compares a model in one process with the same model spread over ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.pipeline.wrapper import AXIS
from torsh_runtime.parallel.tensor import parallelize
from torsh_runtime.parallel.verification.batches import share_of
from torsh_runtime.parallel.verification.comparing import tolerance_of
from torsh_runtime.parallel.verification.comparison import Comparison, Norm
from torsh_runtime.parallel.verification.difference import Verification
from torsh_runtime.parallel.verification.judging import judged
from torsh_runtime.parallel.verification.masks import masks_that_differ
from torsh_runtime.parallel.verification.place import Place
from torsh_runtime.parallel.verification.running import Loss, Runs, Step
from torsh_runtime.parallel.verification.spreading import Spread

Plan = Mapping[str, Any] | Callable[[Any], Any]


def verify(
    model: Any,
    mesh: DeviceMesh | ProcessGroup | None,
    plan: Plan,
    batch: Any,
    target: Any = None,
    *,
    loss: Loss | None = None,
    step: Step | None = None,
    data_axes: Sequence[str] = ("dp",),
    context_axis: str = "cp",
    norm: Norm | None = None,
    tolerance: float | None = None,
) -> Verification:
    """Run the model as it is beside a copy that is spread, and compare all that both compute.

    Compared are parameters, outputs of modules, losses, the outputs' gradients, those of the
    parameters, and the norm; of pipelines the outputs of all microbatches together. And dropout:
    with nn its masks are those of one process, with torch masks must be alike on ranks that have
    the same and must not be on ranks that have parts.

    Args:
        model: A model of torch or torsh_runtime.nn, the same on all ranks, small enough that each
            rank can hold it twice. It stays as it is.
        mesh: The ranks, which call this together; a group, or None for the default one, is an axis
            "tp".
        plan: A plan as parallelize() takes it; or a function that spreads the model that it is
            given and returns it, with wrappers (DistributedDataParallel, FullyShardedDataParallel)
            or without, or returns a PipelineParallel along the mesh's axis "pp".
        batch: The arguments of the model, a tensor or a tuple of them, the same on all ranks. Along
            data_axes each rank takes its rows, and along context_axis its tokens of them (dimension
            1), as context_shard() does.
        target: The arguments of the loss, in the same form.
        loss: A function (outputs, target) -> a number, of the whole model; of the spread one, too,
            unless that is a pipeline or there is a step. None: the outputs are weighed with fixed
            random numbers.
        step: A function (what plan returned, this rank's batch, its target) -> this rank's loss:
            all that the training does until gradients are final, with what averages them. None: a
            forward and a backward pass, or the pipeline's step(); what no wrapper averages is
            averaged here. The mean of the losses along the axes of data is that of the whole batch.
        data_axes: The mesh's axes along which ranks have different rows.
        context_axis: The mesh's axis along which ranks have different tokens.
        norm: A function that returns the norm of the gradients of what plan returned; None is
            clip_grad_norm_() on the mesh.
        tolerance: The largest difference, relative to the size of such values; None: from the
            dtype.

    Returns:
        What differs, the same on all ranks.

    Raises:
        ConfigError: For a batch whose rows the data axes do not divide, and without a loss for a
            pipeline or a step.
        Exception: What the model, the plan and the step raise.

    Example:
        ```python
        plan = {"blocks.*.mlp.up": tr.Column(), "blocks.*.mlp.down": tr.Row()}
        result = tr.verify(model, mesh, plan, batch)
        print(result)
        ```
    """
    whole_mesh = mesh if isinstance(mesh, DeviceMesh) else _of_one_axis(group_of(mesh))
    inputs = batch if isinstance(batch, tuple) else (batch,)
    given = copy.deepcopy(model)
    made = plan(given) if callable(plan) else parallelize(given, mesh, plan)
    spread = Spread(made, whole_mesh)
    _check_loss(loss, bool(spread.pipeline or step))
    place = Place(whole_mesh, data_axes, context_axis, AXIS if spread.pipeline else None)
    runs = Runs(model, spread, share_of(inputs, place), inputs, target)
    whole = runs.whole(loss)
    found = Comparison(spread, runs.share, whole, runs.spread(loss, step))
    pairs = [*found.pairs(norm, is_reduced=step is not None)]
    rate = tolerance_of(model) if tolerance is None else tolerance
    masks = masks_that_differ(spread, runs.forward, place, found.is_cut)
    differences = *masks, *judged(pairs, place, rate)
    compared = {order for rows in place.of_all([pair.order for pair in pairs]) for order in rows}
    return Verification(compared=len(compared), differences=differences)


def _check_loss(loss: Loss | None, is_needed: bool) -> None:
    if is_needed and loss is None:
        raise ConfigError(
            "verify() has no loss of the whole model to compare a step with: pass loss="
        )


def _of_one_axis(group: ProcessGroup) -> DeviceMesh:
    return DeviceMesh((group.world_size,), ("tp",), group)
