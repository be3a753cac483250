"""Compares a model in one process with the same model spread over ranks: runs both.

The whole model runs in the microbatches of a pipeline, if there is one, on all ranks that divide
rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import framework_of
from torsh_runtime.framework.models import all_parameters
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.operations import joined
from torsh_runtime.parallel.pipeline import batches
from torsh_runtime.parallel.pipeline.wrapper import AXIS
from torsh_runtime.parallel.streams import random_stream
from torsh_runtime.parallel.tensor import parallelize
from torsh_runtime.parallel.tensor.watching import unwatched
from torsh_runtime.parallel.verification.comparison import Comparison, Norm, elements, parts_of
from torsh_runtime.parallel.verification.difference import Verification, judged, tolerance_of
from torsh_runtime.parallel.verification.placing import Place, Share, share_of
from torsh_runtime.parallel.verification.recording import (
    Key,
    Parts,
    Pass,
    Recording,
    Spread,
    Watched,
    masks_that_differ,
    record,
    tensors_in,
    without_dropout,
)

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


Loss = Callable[[Any, Any], Any]

Step = Callable[[Any, Any, Any], Any]


class Runs:
    """Runs both models with one batch, the same on all ranks."""

    def __init__(
        self, model: Any, spread: Spread, share: Share, inputs: tuple[Any, ...], target: Any
    ) -> None:
        self._model, self._spread, self.share = copy.deepcopy(model), spread, share
        self._inputs, self._target = inputs, target
        self._weights: list[Any] = []
        self._returned: list[tuple[int, ...]] = []

    @property
    def rows(self) -> tuple[Any, ...]:
        """Return this rank's inputs."""
        return tuple(map(self.share.of, self._inputs))

    def whole(self, loss: Loss | None) -> Recording:
        """Record the whole model in one process, in microbatches if it is beside a pipeline."""
        named = dict(all_parameters(self._model))
        watched = Watched(self._model, dict(self._model.named_modules()), named, Pass)
        pipeline = self._spread.pipeline
        if pipeline is not None and loss is not None:
            place, count = self.share.place, pipeline.num_microbatches
            rows = dealt(self.share.rows, place.size(place.row_axes), count)
            made = Accumulation(self._model, watched, rows)
            with self._alike(self._model):
                return made.recorded(self._inputs, self._target, loss)

        def run() -> float | None:
            outputs = self._model(*self._inputs)
            found = self._weighed(outputs) if loss is None else loss(outputs, self._target)
            found.backward()
            return None if loss is None else float(found.item())

        with self._alike(self._model):
            return record(watched, run)

    def spread(self, loss: Loss | None, step: Step | None) -> Recording:
        """Record this rank's part of the spread model. Call whole() first."""
        made, rows = self._spread.made, self.rows
        target = None if self._target is None else _each(self.share.of, self._target)

        def run() -> float | None:
            if step is not None:
                return _as_float(step(made, _single(rows), target))
            if self._spread.pipeline:
                return float(made.step(rows, target))
            outputs = made(*rows)
            found = self._weighed_part(outputs) if loss is None else loss(outputs, target)
            found.backward()
            return None if loss is None else float(found.item())

        with self._alike(self._spread.module), unwatched():
            return record(self._spread.watched(), run)

    def forward(self) -> object:
        """Call the spread model without recording."""
        with unwatched():
            if self._spread.pipeline:
                return self._spread.pipeline.forward(self.rows)
            return self._spread.made(*self.rows)

    def _alike(self, model: Any) -> AbstractContextManager[None]:
        """Let both models draw the same random numbers within the block, or none.

        With nn they are those of the whole batch. Models of torch, whose masks differ for parts,
        and ranks that divide rows, of which each draws its own, run without dropout.
        """
        is_whole = self.share.place.data_ranks == 1 and not self._spread.pipeline
        is_nn = framework_of(self._spread.module).name == "nn"
        return random_stream("verify") if is_nn and is_whole else without_dropout(model)

    def _weighed(self, outputs: Any) -> Any:
        """Return a number that depends on everything one process returned."""
        tensors = tensors_in(outputs)
        self._returned = [tuple(each.shape) for each in tensors]
        self._weights = [_random(shape, at) for at, shape in enumerate(self._returned)]
        return _sum_of(tensors, self._weights)

    def _weighed_part(self, outputs: Any) -> Any:
        """Return this rank's share of _weighed(): the mean of shares over the data is that number.

        Raises ConfigError if the spread model's outputs cannot be parts of the whole one's.
        """
        place, tensors = self.share.place, tensors_in(outputs)
        everyone = place.of_all([tuple(each.shape) for each in tensors])
        weights = []
        for at, (whole, weight) in enumerate(zip(self._returned, self._weights, strict=True)):
            shapes = {rank: each[at] for rank, each in enumerate(everyone)}
            found = parts_of(whole, shapes, self.share)
            if not found:
                raise ConfigError(
                    f"the spread model returns a tensor of shape {shapes[place.group.rank]} where "
                    f"the whole one returns one of {whole}"
                )
            weights.append(elements(weight, found[0]) * place.size(found[0].axes))
        return _sum_of(tensors, weights)


def _random(shape: tuple[int, ...], number: int) -> Any:
    return np.random.default_rng(number).standard_normal(shape)


def _sum_of(tensors: Sequence[Any], weights: Sequence[Any]) -> Any:
    terms = [(t * _like(t, weight)).sum() for t, weight in zip(tensors, weights, strict=True)]
    return sum(terms[1:], terms[0])


def _like(tensor: Any, array: Any) -> Any:
    if hasattr(tensor, "new_tensor"):
        return tensor.new_tensor(array)
    return type(tensor)(np.asarray(array, tensor.dtype))


def _each(call: Callable[[Any], Any], value: Any) -> Any:
    return tuple(map(call, value)) if isinstance(value, tuple) else call(value)


def _single(rows: tuple[Any, ...]) -> Any:
    return rows[0] if len(rows) == 1 else rows


def _as_float(loss: Any) -> float:
    return float(loss.item() if hasattr(loss, "item") else loss)


Rows = NDArray[np.int64]


def dealt(rows: int, ranks: int, count: int) -> list[Rows]:
    """Return which rows of a batch are in each microbatch.

    Each rank has equally many consecutive rows, and divides them. ConfigError for fewer rows than
    microbatches.
    """
    by_rank = np.arange(rows).reshape(ranks, -1).T
    return [part.T.reshape(-1) for (part,) in batches.microbatches(by_rank, count)]


class Accumulation:
    """Accumulates the gradients of microbatches in one process, as a pipeline's ranks do."""

    def __init__(self, model: Any, watched: Watched, rows: Sequence[Rows]) -> None:
        """Prepare to record a model. rows: those of each microbatch."""
        self._model, self._rows, self._number = model, rows, 0
        self._watched = replace(watched, present=lambda: Pass(self._number))
        self._order = np.argsort(np.concatenate(rows))

    def recorded(self, inputs: tuple[Any, ...], target: Any, loss: Loss) -> Recording:
        """Record all microbatches, with the names and shapes of one pass of the whole batch.

        The loss is that of all outputs together, whatever weights a pipeline gives its
        microbatches.
        """
        returned: list[Any] = []
        at_once = record(self._watched, lambda: returned.append(self._model(*inputs)))

        def run() -> float:
            found = loss(self._outputs(inputs, returned[0]), target)
            found.backward()
            return float(found.item())

        made = record(self._watched, run)
        shapes = {key: parts[0].shape for key, parts in at_once.outputs.items()}
        made.outputs = self._merged(made.outputs, shapes, is_output=True)
        made.gradients = self._merged(made.gradients, shapes, is_output=False)
        return made

    def _outputs(self, inputs: tuple[Any, ...], whole: Any) -> Any:
        """Return the model's outputs of all microbatches, put together as for the whole batch."""
        found = []
        for number, rows in enumerate(self._rows):
            self._number = number
            found.append(self._model(*(each[rows] for each in inputs)))
        if not isinstance(whole, tuple):
            return self._together(found, whole.shape)
        columns = zip(*found, strict=True)
        return tuple(self._together(c, w.shape) for c, w in zip(columns, whole, strict=True))

    def _together(self, parts: Sequence[Any], shape: Sequence[int]) -> Any:
        """Put rows into the batch's order; average values without rows over the batch's rows."""
        if self._has_rows(parts, shape):
            return joined(parts, 0)[self._places(shape[0])]
        weights = [len(rows) / len(self._order) for rows in self._rows]
        return sum(part * weight for part, weight in zip(parts, weights, strict=True))

    def _merged(
        self, values: Mapping[Key, Parts], shapes: Mapping[Key, Sequence[int]], is_output: bool
    ) -> dict[Key, Parts]:
        """Combine values of microbatches as recordings of ranks are combined."""
        found = {}
        for key, by_number in values.items():
            parts = [each for _, each in sorted(by_number.items())]
            if self._has_rows(parts, shapes[key]):
                found[key] = {0: joined(parts, 0)[self._places(shapes[key][0])]}
            else:
                found[key] = {0: sum(parts) / (len(parts) if is_output else 1)}
        return found

    def _has_rows(self, parts: Sequence[Any], shape: Sequence[int]) -> bool:
        return bool(len(shape)) and sum(each.shape[0] for each in parts) == shape[0]

    def _places(self, size: int) -> Rows:
        """Return where each index of a dimension with all rows is in joined microbatches."""
        each = size // len(self._order)
        return (self._order[:, None] * each + np.arange(each)).reshape(-1)
