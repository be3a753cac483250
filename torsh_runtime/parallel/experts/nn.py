"""Experts for models of torsh_runtime.nn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime import nn
from torsh_runtime.nn import functional, init
from torsh_runtime.nn.arrays import array_module, dtype_named, to_device
from torsh_runtime.parallel.experts import layers


class _OfNn:
    framework = "nn"
    functional = functional


class MixtureOfExperts(_OfNn, layers.MixtureOfExperts, nn.Module):
    """Mixes experts in models of tr.nn."""

    def _drawn(self, shape: tuple[int, ...], fan_in: int, dtype: Any) -> nn.Tensor:
        empty = nn.Tensor(np.empty(shape, dtype_named(dtype or np.float32)))
        drawn: nn.Tensor = init.uniform_(empty, -(fan_in**-0.5), fan_in**-0.5)
        return drawn

    def _parameter(self, values: nn.Tensor) -> nn.Parameter:
        return nn.Parameter(values)

    def _numbers(self, chosen: Any) -> NDArray[np.int64]:
        return np.asarray(to_device(getattr(chosen, "data", chosen), "cpu"), np.int64)

    def _on_host(self, scores: nn.Tensor) -> NDArray[Any]:
        found: NDArray[Any] = to_device(scores.data, "cpu")
        return found

    def _like(self, array: NDArray[Any], tensor: nn.Tensor) -> nn.Tensor:
        return nn.Tensor(array_module(tensor.data).asarray(array, tensor.data.dtype))
