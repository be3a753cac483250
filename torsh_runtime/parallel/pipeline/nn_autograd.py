"""Stages that are modules of torsh_runtime.nn."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from torsh_runtime import nn
from torsh_runtime.nn.arrays import array_module, dtype_named
from torsh_runtime.nn.backward import backward, backward_inputs
from torsh_runtime.nn.grad_mode import set_grad_enabled
from torsh_runtime.nn.random import get_rng_state, set_rng_state
from torsh_runtime.parallel.pipeline.autograd import Autograd, Spec


class NnAutograd(Autograd):
    """Computes for stages of torsh_runtime.nn, whose recorded graphs can be walked in two parts."""

    def __init__(self, module: Any, like: Any = None) -> None:
        first = next((each.data for each in module.parameters()), None) if like is None else like
        self._arrays = np if first is None else array_module(first)

    def leaf(self, values: Any, wants_gradient: bool) -> Any:
        return nn.Tensor(values, wants_gradient)

    def values(self, tensor: Any) -> Any:
        if not isinstance(tensor, nn.Tensor):
            raise TypeError(f"a {type(tensor).__qualname__} is no tensor")
        return self._arrays.ascontiguousarray(tensor.data)

    def spec(self, tensor: Any) -> Spec:
        array = self.values(tensor)
        return Spec(tuple(array.shape), array.dtype.name, bool(tensor.requires_grad))

    def nbytes(self, spec: Spec) -> int:
        return math.prod(spec.shape) * dtype_named(spec.dtype).itemsize

    def empty(self, spec: Spec) -> Any:
        return self._arrays.empty(spec.shape, dtype_named(spec.dtype))

    def zeros(self, spec: Spec) -> Any:
        return self._arrays.zeros(spec.shape, dtype_named(spec.dtype))

    def gradient(self, leaf: Any) -> Any | None:
        return None if leaf.grad is None else self._arrays.ascontiguousarray(leaf.grad.data)

    def weight(self, loss: Any, weight: float) -> Any:
        return self._arrays.full(loss.data.shape, weight, loss.data.dtype)

    def number(self, loss: Any) -> float:
        return float(loss.item())

    def backward(self, outputs: Sequence[Any], gradients: Sequence[Any]) -> None:
        backward(outputs, gradients)

    def backward_inputs(
        self, outputs: Sequence[Any], gradients: Sequence[Any], inputs: Sequence[Any]
    ) -> Callable[[], None]:
        return backward_inputs(outputs, gradients, inputs)

    def splitting(self) -> AbstractContextManager[object]:
        return nullcontext()

    def recording(self, enabled: bool) -> AbstractContextManager[object]:
        return set_grad_enabled(enabled)

    def random_state(self) -> Any:
        return get_rng_state()

    def set_random_state(self, state: Any) -> None:
        set_rng_state(state)

    def joined(self, outputs: Sequence[Any]) -> Any:
        return nn.Tensor(self._arrays.concatenate([each.data for each in outputs]))

    def held_bytes(self, forward: Callable[[], object]) -> int:
        was_tracing = tracemalloc.is_tracing()
        if not was_tracing:
            tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            results = forward()
            held = tracemalloc.get_traced_memory()[0] - before
            del results
        finally:
            if not was_tracing:
                tracemalloc.stop()
        return held

    def synchronise(self) -> None:
        if self._arrays is not np:
            self._arrays.cuda.get_current_stream().synchronize()
