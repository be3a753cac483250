"""Attention of this rank's queries to the keys of all ranks, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torsh_runtime.parallel.context.kernels import Kernel
from torsh_runtime.parallel.context.merging import Sum, empty_in_kind, kind, merge
from torsh_runtime.parallel.context.routes import Route
from torsh_runtime.parallel.context.tasks import Task
from torsh_runtime.parallel.operations import Array, JointOperation, cast, functions_of
from torsh_runtime.parallel.regions.arrays import contiguous


@dataclass(frozen=True, slots=True)
class Blockwise(JointOperation):
    """Softmax over blocks, one after the other, merged by their logsumexp (Milakov and
    Gimelshein, Online normalizer calculation for softmax, 2018).
    """

    route: Callable[[], Route]
    """Makes one for a pass."""
    tasks: Sequence[Sequence[Task]]
    """Tasks by the rank that owns the block; in a rank's own block each query has one."""
    kernel: Kernel[Any]
    scale: float
    is_banded: bool = False
    """True if tasks are bands: in the first block a query may have several, or none at all."""
    has_sinks: bool = False
    """True if a fourth array gives each head a score whose weight falls on no value."""

    def forward(self, *arrays: Array) -> tuple[Array, Sequence[Array]]:
        query, *block = arrays[:3]
        # Kernels are faster where a head's tokens lie one behind the other.
        key, value = map(contiguous, block)
        merged, route = _Merged(query, value), self.route()
        if self.is_banded:
            merged.begin()
        for source, (keys, values) in route.blocks([key, value]):
            for task in self.tasks[source]:
                own, at = _places(task)
                operands = query[own], keys[at], values[at]
                how = task.is_causal, self.scale, task.band
                merged.add(own, *self.kernel.forward(*operands, *how))
            merged.is_begun = True
        for sinks in arrays[3:]:
            merged.sink(sinks)
        result = cast(merged.output, query.dtype)
        saved = query, key, value, result, merged.logsumexp, *arrays[3:], *route.kept
        return result, saved

    def backward(self, gradient: Array, *saved: Array) -> tuple[Array | None, ...]:
        query, key, value, output, logsumexp, *kept = saved
        sinks = [kept.pop(0)] if self.has_sinks else []
        for_query, route = Sum(query), self.route()
        for source, block in route.blocks([key, value], kept):
            sums = [Sum(each) for each in block]
            for task in self.tasks[source]:
                own, at = _places(task)
                found: tuple[Array, ...] = self.kernel.backward(
                    gradient[own],
                    query[own],
                    block[0][at],
                    block[1][at],
                    output[own],
                    logsumexp[own],
                    task.is_causal,
                    self.scale,
                    task.band,
                )
                for_query.add(own, found[0])
                for total, each in zip(sums, found[1:], strict=True):
                    total.add(at, each)
            route.give([total.array() for total in sums])
        gradients = for_query.array(), *route.returned()
        of_sinks = [_of_sinks(each, gradient, output, logsumexp) for each in sinks]
        pairs = zip((*gradients, *of_sinks), (query, key, value, *sinks), strict=True)
        return tuple(cast(each, like.dtype) for each, like in pairs)


def _places(task: Task) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return the indices of the task's queries and of its keys."""
    every = slice(None)
    return (task.rows, every, task.queries), (task.rows, every, task.keys)


def _of_sinks(sinks: Array, gradient: Array, output: Array, logsumexp: Array) -> Array:
    """Return the sinks' gradients: their weight takes from the values' and adds no value."""
    xp, computed = functions_of(sinks), kind(output)
    weights = xp.exp(cast(sinks, computed)[:, None] - logsumexp)
    delta = (cast(gradient, computed) * cast(output, computed)).sum(-1)
    return -(weights * delta).sum((0, 2))


class _Merged:
    """Merges the results of blocks. In the first block each query has exactly one task."""

    output: Array
    logsumexp: Array

    def __init__(self, query: Array, value: Array) -> None:
        self._like, self._shape = query, (*query.shape[:3], value.shape[-1])
        self.is_begun = False

    def begin(self) -> None:
        """Begin with zeros, which queries that look at no key keep."""
        self._make_room()
        self.output[...] = 0
        self.logsumexp[...] = -math.inf
        self.is_begun = True

    def _make_room(self) -> None:
        self.output = empty_in_kind(self._like, self._shape)
        self.logsumexp = empty_in_kind(self._like, self._shape[:3])

    def sink(self, sinks: Array) -> None:
        """Add a score of each head, whose value is zero, to the softmax."""
        xp = functions_of(self.output)
        scores = cast(sinks, self.output.dtype)[:, None]
        total = xp.logaddexp(self.logsumexp, scores)
        self.output *= xp.exp(self.logsumexp - total)[..., None]
        self.logsumexp = total

    def add(self, own: tuple[slice, ...], output: Array, logsumexp: Array) -> None:
        """Merge a result for some queries; both arrays are taken over."""
        if self.is_begun:
            merge(self.output[own], self.logsumexp[own], output, logsumexp)
        elif output.shape == self._shape:
            self.output, self.logsumexp = output, logsumexp
        else:
            if not hasattr(self, "output"):
                self._make_room()
            self.output[own], self.logsumexp[own] = output, logsumexp
