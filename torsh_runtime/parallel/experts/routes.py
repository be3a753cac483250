"""Chooses experts and counts assignments, on the processor or on the tokens' device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework import Framework, Tensor
from torsh_runtime.parallel.dispatch import routing
from torsh_runtime.parallel.dispatch.routing import Indices, Limit
from torsh_runtime.parallel.dispatch.sending import is_routed_there

if TYPE_CHECKING:
    import torch


class Routes(ABC):
    """Computes with the numbers of experts. `everyone` are the assignments of each rank with
    tokens to each expert, (ranks, experts).
    """

    def __init__(self, port: Framework, experts: int) -> None:
        """Compute for a layer of a framework with so many experts."""
        self._port, self._experts = port, experts

    @abstractmethod
    def chosen(self, scores: Any, top_k: int) -> tuple[Any, Any]:
        """Return for scores (tokens, experts) the highest ones' experts, and these scores, both
        (tokens, top_k)."""

    @abstractmethod
    def numbers(self, chosen: Any, tokens: Any) -> Any:
        """Return whole numbers as the other methods take them."""

    @abstractmethod
    def everyone(self, chosen: Any, group: ProcessGroup) -> Any:
        """Return how often each rank of the group has chosen each expert. All ranks call it."""

    @abstractmethod
    def limit(self, everyone: Any, factor: float, rank: int) -> Limit:
        """Return what each expert takes at most; see capacity()."""

    @abstractmethod
    def parts(self, everyone: Any, top_k: int, scores: Any) -> Any:
        """Return for each expert experts · its part of all assignments / tokens, in a constant of
        the dtype of `scores`."""


class HostRoutes(Routes):
    """Computes on the processor, for tensors of any framework."""

    def chosen(self, scores: Any, top_k: int) -> tuple[Indices, Any]:
        chosen = routing.highest(self._port.numpy(scores), top_k)
        return chosen, scores[np.arange(len(chosen))[:, None], chosen]

    def numbers(self, chosen: Any, tokens: Any) -> Indices:
        is_tensor = isinstance(chosen, self._port.tensor_type)
        return np.asarray(self._port.numpy(chosen) if is_tensor else chosen, np.int64)

    def everyone(self, chosen: Indices, group: ProcessGroup) -> Indices:
        return group.all_gather_numbers(routing.counted(chosen, self._experts))

    def limit(self, everyone: Indices, factor: float, rank: int) -> Limit:
        most = routing.capacity(factor, int(everyone.sum()), self._experts)
        return Limit(everyone[:rank].sum(axis=0), most)

    def parts(self, everyone: Indices, top_k: int, scores: Any) -> Any:
        total = max(int(everyone.sum()), 1)
        parts = everyone.sum(axis=0) * (self._experts * top_k / total**2)
        return self._port.as_tensor(parts, scores)


class DeviceRoutes(Routes):
    """Computes on the device of torch's tokens, without waiting for it."""

    def chosen(self, scores: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
        from torsh_runtime.parallel.dispatch import device

        chosen = device.highest(scores, top_k)
        return chosen, scores.gather(1, chosen)

    def numbers(self, chosen: Any, tokens: torch.Tensor) -> torch.Tensor:
        import torch

        found = torch.as_tensor(chosen, dtype=torch.int64, device=tokens.device)
        return found.detach()

    def everyone(self, chosen: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        from torsh_runtime.parallel.dispatch import device

        return device.gathered(device.counted(chosen, self._experts), group)

    def limit(self, everyone: torch.Tensor, factor: float, rank: int) -> Limit:
        most = (everyone.sum().double() * factor / self._experts).ceil().long()
        return Limit(everyone[:rank].sum(0), most)

    def parts(self, everyone: torch.Tensor, top_k: int, scores: torch.Tensor) -> torch.Tensor:
        total = everyone.sum().clamp(min=1).double()
        parts = everyone.sum(0) * (self._experts * top_k / total**2)
        return parts.to(scores.dtype)


def routes_for(port: Framework, tokens: Tensor, experts: int) -> Routes:
    """Return what computes the routes of such tokens."""
    kind = DeviceRoutes if is_routed_there(tokens) else HostRoutes
    return kind(port, experts)
