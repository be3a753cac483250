"""Allocates the memory that gradients are averaged in, and places them there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from torsh_runtime.arrays.raw import dtype_name
from torsh_runtime.framework import Module, Tensor, framework_of
from torsh_runtime.framework.models import flat_memory, kind_of, trained_parameters
from torsh_runtime.parallel.ddp.bucket import Bucket
from torsh_runtime.parallel.ddp.config import BucketConfig
from torsh_runtime.parallel.ddp.plan import Gradient, Kind, Span, limits_of, spans
from torsh_runtime.parallel.operations import is_finite
from torsh_runtime.parallel.regions.arrays import copied
from torsh_runtime.parallel.replicas import Replicas


class Buckets:
    """Holds all buckets of a model, in one flat piece of memory for each kind of gradients."""

    def __init__(self, model: Module, replicas: Replicas, config: BucketConfig) -> None:
        self._framework = framework_of(model)
        self._replicas = replicas
        self._config = config
        self._parameters = trained_parameters(model)
        self._gradients = [self._gradient(parameter) for _, parameter in self._parameters]
        self._limits = limits_of(
            config.bucket_size_mb,
            config.bucket_size_mb != BucketConfig().bucket_size_mb,
            sum(each.elements * each.itemsize for each in self._gradients if not each.kind[2]),
            overlaps=config.overlap_communication or not replicas.group.is_in_node,
        )
        self._shapes = [tuple(parameter.shape) for _, parameter in self._parameters]
        self._flat: dict[Kind, Any] = {}
        self._order = self._first_order()
        self._next_order: list[int] | None = None
        self._buckets: list[Bucket] = []
        self._views: list[Any] = []
        self._bucket_of: list[Bucket] = []

    def begin_anew(self) -> None:
        """Lay out the buckets as for the first pass, in new memory: ranks share it by the group."""
        self._flat, self._order, self._next_order = {}, self._first_order(), None
        self._buckets, self._views, self._bucket_of = [], [], []  # nor hold the old memory

    def _first_order(self) -> list[int]:
        return list(reversed(range(len(self._parameters))))

    def open(self) -> None:
        """Begin a pass whose gradients are averaged. The first call allocates the memory, on all
        ranks."""
        if not self._flat:
            self._flat = self._memory()
            self._lay()
        if self._next_order is not None:
            self._order, self._next_order = self._next_order, None
            self._move()
        for bucket in self._buckets:
            bucket.missing = len(bucket.names)

    def put(self, number: int) -> str:
        """Put a parameter's gradient into its bucket, or zeros if it has none. What is wrong with
        the gradient; "" if nothing."""
        view, parameter = self._views[number], self._parameters[number][1]
        gradient = parameter.grad
        if gradient is None:
            return self.put_zeros(number)
        self._bucket_of[number].missing -= 1
        shape, expected = tuple(gradient.shape), self._shapes[number]
        if shape != expected:
            view[...] = 0
            return (
                f"has a gradient of shape {shape}, and had the shape {expected} when the model was "
                f"wrapped: wrap it anew"
            )
        if not self._framework.is_at(gradient.data, view):
            view[...] = self._framework.dense(gradient.data)
            if self._aliases(number):
                self._framework.set_gradient(parameter, view)
        if self._config.check_nan and not is_finite(view):
            return "has a gradient that is not finite"
        return ""

    def put_zeros(self, number: int) -> str:
        """Put zeros into a parameter's bucket, as if it had no gradient. Return ""."""
        self._bucket_of[number].missing -= 1
        self._views[number][...] = 0
        return ""

    def complete(self, start: int) -> Iterator[Bucket]:
        """Yield the buckets from number `start` up to the first that misses a gradient."""
        for bucket in self._buckets[start:]:
            if bucket.missing:
                return
            yield bucket

    def give_back(self, used: set[int]) -> None:
        """Give these parameters the averages. The others keep their gradients."""
        for number in used:
            view, parameter = self._views[number], self._parameters[number][1]
            gradient = parameter.grad
            if gradient is not None and self._framework.is_at(gradient.data, view):
                continue
            if self._aliases(number):
                self._framework.set_gradient(parameter, view)
            elif gradient is not None:
                self._framework.write_gradient(gradient, view)
            else:
                own = self._framework.cast(view, dtype_name(parameter))
                self._framework.set_gradient(parameter, copied(own))

    def rearrange(self, order: Sequence[int]) -> None:
        """Arrange the buckets for gradients that become ready in this order, from the next pass
        on."""
        if list(order) != self._order:
            self._next_order = list(order)

    def _move(self) -> None:
        """Rearrange the buckets, and keep the gradients that are views."""
        kept = {
            number: copied(view)
            for number, view in enumerate(self._views)
            if (gradient := self._parameters[number][1].grad) is not None
            and self._framework.is_at(gradient.data, view)
        }
        self._lay()
        for number, gradient in kept.items():
            self._views[number][...] = gradient
            self._framework.set_gradient(self._parameters[number][1], self._views[number])

    def _lay(self) -> None:
        laid = spans(self._gradients, self._order, self._limits)
        self._buckets = [self._bucket(span, i, len(laid)) for i, span in enumerate(laid)]
        self._views = [None] * len(self._parameters)
        self._bucket_of = self._buckets[:1] * len(self._parameters)
        for bucket, span in zip(self._buckets, laid, strict=True):
            for number, view in zip(span.members, bucket.views, strict=True):
                self._views[number] = view
                self._bucket_of[number] = bucket

    def _bucket(self, span: Span, index: int, count: int) -> Bucket:
        flat = self._flat[span.kind][span.start : span.end]
        ends = accumulate(self._gradients[number].elements for number in span.members)
        starts = [0, *ends][:-1]
        views = [self._view(flat, *each) for each in zip(starts, span.members, strict=True)]
        members = [self._parameters[number] for number in span.members]
        group, place = self._replicas.groups[span.kind[2]], (index, index == count - 1)
        return Bucket(self._framework, flat, views, members, place, group)

    def _view(self, flat: Any, start: int, number: int) -> Any:
        parameter = self._parameters[number][1]
        if tuple(parameter.shape) == self._shapes[number]:
            return self._framework.part(flat, start, parameter)
        return flat[start : start + self._gradients[number].elements]

    def _gradient(self, parameter: Tensor) -> Gradient:
        dtype, device = kind_of(parameter)
        is_complex = dtype.startswith("complex")  # of which no other dtype is the like
        reduced = dtype if is_complex else self._config.reduce_dtype or dtype
        elements = math.prod(tuple(parameter.shape))
        group = self._replicas.groups.index(self._replicas.of(parameter))
        itemsize = self._framework.dtype(reduced).itemsize
        return Gradient(elements, itemsize, (reduced, device, group))

    def _memory(self) -> dict[Kind, Any]:
        sizes: dict[Kind, int] = {}
        like: dict[Kind, Any] = {}
        for gradient, (_, parameter) in zip(self._gradients, self._parameters, strict=True):
            sizes[gradient.kind] = sizes.get(gradient.kind, 0) + gradient.elements
            like.setdefault(gradient.kind, parameter)
        return {
            kind: flat_memory(like[kind], size, self._replicas.groups[kind[2]], kind[0])
            for kind, size in sizes.items()
        }

    def _aliases(self, number: int) -> bool:
        kind = kind_of(self._parameters[number][1])
        return self._config.gradient_as_bucket_view and self._gradients[number].kind[:2] == kind
