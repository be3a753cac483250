"""Computes the loss of a batch from those of its microbatches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.parallel.pipeline import batches
from torsh_runtime.parallel.pipeline.giving import Given, single

_DIVIDED = (
    f"the batch has {batches.DIVISOR}, and others have other batches, over which that may have "
    f"been counted or not: leave it out, as labels of all microbatches and replicas are counted"
)


class BatchLoss:
    """Weighs the microbatches of a batch, and computes its loss by that."""

    def __init__(
        self,
        group: ProcessGroup,
        last: int,
        data: ProcessGroup | None,
        is_own: bool,
        tokens: Callable[[Any], Any] | None,
        counted: Callable[[Any], float] | None,
    ) -> None:
        """Create it for a pipeline.

        Args:
            group: The ranks of the pipeline.
            last: The rank of the last stage.
            data: The ranks whose batches differ, if there are several.
            is_own: Whether the model computes its loss itself.
            tokens: A function target -> the number of elements that its loss is the mean of.
            counted: The same for a call of a model that computes its loss itself.
        """
        self._group, self._last, self._data, self._is_own = group, last, data, is_own
        self._tokens, self._counted = tokens, counted

    @property
    def _is_last(self) -> bool:
        return self._group.rank == self._last

    def uncounted(self, batch: Any) -> str:
        """Return why a batch's loss cannot be computed from those of microbatches; "" if it can."""
        if not self._is_own or not self._is_last:
            return ""
        if batches.has_divisor(batch):
            return "" if self._data is None else _DIVIDED
        if self._tokens is not None or self._counted is not None:
            return ""
        return (
            "it is not known what the model's own loss is the mean of: pass tokens=, which counts "
            "that of a microbatch, a loss_fn, or an example= with its labels"
        )

    def weights(self, given: Given) -> list[float]:
        """Return the weight of each microbatch in the mean over all microbatches. Weights
        compensate for the division by the mean along data axes."""
        if self._is_own:
            if any(batches.DIVISOR in each.named for each in given.inputs):
                return [1.0 for _ in given.inputs]
            count = self._counted if self._tokens is None else self._by_tokens
            assert count is not None, "it has been refused otherwise"
            counts = [float(count(each)) for each in given.inputs]
        else:
            counts = batches.counts([single(each) for each in given.targets], self._tokens)
        total = np.array([sum(counts)])
        if self._data is not None:
            self._data.all_reduce(total)
            total /= self._data.world_size
        return [count / float(total[0]) if total[0] else math.nan for count in counts]

    def _by_tokens(self, call: Any) -> float:
        assert self._tokens is not None, "the caller knows"
        return float(self._tokens(call.named))

    def mean(self, losses: Any, weights: list[float], waits: bool) -> float:
        """Return the loss of a batch, on all ranks. losses: those of the microbatches, by number,
        on the rank of the last stage. waits: whether to wait first for all ranks."""
        found = np.zeros(1)
        if self._is_last:
            found[0] = sum(w * float(losses[m].item()) for m, w in enumerate(weights) if w)
            if self._data is not None:
                self._data.all_reduce(found)
                found /= self._data.world_size
        if waits:
            self._group.barrier()
        self._group.broadcast(found, self._last)
        return float(found[0])
