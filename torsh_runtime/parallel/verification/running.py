"""Runs a model as it is, and spread over ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import framework_of
from torsh_runtime.framework.models import all_parameters
from torsh_runtime.parallel.streams import random_stream
from torsh_runtime.parallel.verification.batches import Share
from torsh_runtime.parallel.verification.comparison import elements, parts_of
from torsh_runtime.parallel.verification.masks import without_dropout
from torsh_runtime.parallel.verification.microbatches import Accumulation, dealt
from torsh_runtime.parallel.verification.recording import (
    Pass,
    Recording,
    Watched,
    record,
    tensors_in,
)
from torsh_runtime.parallel.verification.spreading import Spread

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

        with self._alike(self._spread.module):
            return record(self._spread.watched(), run)

    def forward(self) -> object:
        """Call the spread model without recording."""
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
