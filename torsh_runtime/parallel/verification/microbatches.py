"""Runs the whole model in microbatches: those of a pipeline, on all ranks that divide rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.parallel.operations import joined
from torsh_runtime.parallel.pipeline import batches
from torsh_runtime.parallel.verification.recording import (
    Key,
    Parts,
    Pass,
    Recording,
    Watched,
    record,
)

Loss = Callable[[Any, Any], Any]
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
