"""Experts for models of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torsh_runtime.parallel import regions
from torsh_runtime.parallel.experts import layers


class _OfTorch:
    framework = "torch"
    functional = nn.functional


class MixtureOfExperts(_OfTorch, layers.MixtureOfExperts, nn.Module):
    """Mixes experts in models of torch."""

    def _drawn(self, shape: tuple[int, ...], fan_in: int, dtype: Any) -> Tensor:
        return torch.empty(shape, dtype=dtype).uniform_(-(fan_in**-0.5), fan_in**-0.5)

    def _parameter(self, values: Tensor) -> nn.Parameter:
        return nn.Parameter(values)

    def _called(self, module: Any, tokens: Tensor) -> Any:
        parts = self.ranks.parts
        if parts is None or not isinstance(module, nn.Module):
            return module(tokens)
        own = {name: regions.copy(each, parts) for name, each in module.named_parameters()}
        return torch.func.functional_call(module, own, (tokens,))

    def _numbers(self, chosen: Any) -> NDArray[np.int64]:
        if not isinstance(chosen, Tensor):
            return np.asarray(chosen, np.int64)
        found: NDArray[np.int64] = chosen.detach().cpu().numpy().astype(np.int64)
        return found

    def _on_host(self, scores: Tensor) -> NDArray[Any]:
        found: NDArray[Any] = scores.detach().cpu().double().numpy()
        return found

    def _like(self, array: NDArray[Any], tensor: Tensor) -> Tensor:
        return torch.from_numpy(array).to(tensor)
