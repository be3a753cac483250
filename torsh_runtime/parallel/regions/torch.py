"""Maps as operations of torch's autograd."""

from __future__ import annotations

from typing import Any

import torch

from torsh_runtime.integrations.torch.compiling import leave_alone
from torsh_runtime.parallel.regions.maps import Map


class _Mapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, applied: Map) -> torch.Tensor:
        ctx.applied = applied
        if applied.is_in_place:
            ctx.mark_dirty(tensor)
        result: torch.Tensor = applied(tensor)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return mapped(gradients[0], ctx.applied.adjoint), None


@leave_alone
def mapped(tensor: torch.Tensor, applied: Map) -> torch.Tensor:
    """What the map makes of it, through which gradients flow by way of its adjoint."""
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        found: torch.Tensor = applied(tensor)
        return found
    apply: Any = _Mapped.apply
    result: torch.Tensor = apply(tensor, applied)
    return result
