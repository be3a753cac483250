"""Attention of this rank's queries to the keys of all ranks, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torsh_runtime.parallel.context.kernels import Kernel
from torsh_runtime.parallel.context.merging import Sum, cast, empty_in_kind, merge
from torsh_runtime.parallel.context.routes import Route
from torsh_runtime.parallel.context.tasks import Task
from torsh_runtime.parallel.operations import Array, JointOperation
from torsh_runtime.parallel.regions.arrays import contiguous


@dataclass(frozen=True, slots=True)
class Blockwise(JointOperation):
    """Softmax over blocks, one after the other, merged by their logsumexp (Milakov and
    Gimelshein, Online normalizer calculation for softmax, 2018).
    """

    route: Callable[[], Route]
    """Makes one for a pass."""
    tasks: Sequence[Sequence[Task]]
    """By the rank whose block it is; in a rank's own block each query has one."""
    kernel: Kernel
    scale: float

    def forward(self, *arrays: Array) -> tuple[Array, Sequence[Array]]:
        query, *block = arrays
        # Kernels are faster where a head's tokens lie one behind the other.
        key, value = map(contiguous, block)
        merged, route = _Merged(query, value), self.route()
        for source, (keys, values) in route.blocks([key, value]):
            for task in self.tasks[source]:
                own, at = _places(task)
                operands = query[own], keys[at], values[at]
                merged.add(own, *self.kernel.forward(*operands, task.is_causal, self.scale))
            merged.is_begun = True
        result = cast(merged.output, query.dtype)
        return result, (query, key, value, result, merged.logsumexp, *route.kept)

    def backward(self, gradient: Array, *saved: Array) -> tuple[Array | None, ...]:
        query, key, value, output, logsumexp, *kept = saved
        for_query, route = Sum(query), self.route()
        for source, block in route.blocks([key, value], kept):
            sums = [Sum(each) for each in block]
            for task in self.tasks[source]:
                own, at = _places(task)
                found = self.kernel.backward(
                    gradient[own],
                    query[own],
                    block[0][at],
                    block[1][at],
                    output[own],
                    logsumexp[own],
                    task.is_causal,
                    self.scale,
                )
                for_query.add(own, found[0])
                for total, each in zip(sums, found[1:], strict=True):
                    total.add(at, each)
            route.give([total.array() for total in sums])
        pairs = zip((for_query.array(), *route.returned()), (query, key, value), strict=True)
        return tuple(cast(each, like.dtype) for each, like in pairs)


def _places(task: Task) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Of its queries and of its keys."""
    every = slice(None)
    return (task.rows, every, task.queries), (task.rows, every, task.keys)


class _Merged:
    """What the blocks make together. In the first one each query has its only task."""

    output: Array
    logsumexp: Array

    def __init__(self, query: Array, value: Array) -> None:
        self._like, self._shape = query, (*query.shape[:3], value.shape[-1])
        self.is_begun = False

    def add(self, own: tuple[slice, ...], output: Array, logsumexp: Array) -> None:
        """Let what these were made of count too, for some queries; both arrays are taken."""
        if self.is_begun:
            merge(self.output[own], self.logsumexp[own], output, logsumexp)
        elif output.shape == self._shape:
            self.output, self.logsumexp = output, logsumexp
        else:
            if not hasattr(self, "output"):
                self.output = empty_in_kind(self._like, self._shape)
                self.logsumexp = empty_in_kind(self._like, self._shape[:3])
            self.output[own], self.logsumexp[own] = output, logsumexp
