"""Operations in graphs of torch's autograd."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from torsh_runtime.integrations.torch.compiling import leave_alone
from torsh_runtime.parallel.regions.maps import Operation


class _Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, operation: Operation) -> torch.Tensor:
        ctx.operation = operation
        result: torch.Tensor = operation(tensor)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return applied(gradients[0], ctx.operation.adjoint), None


def _differentiated(adjoint: Operation, gradient: torch.Tensor) -> torch.Tensor | None:
    """A gradient that will be differentiated itself takes part in the operation after all."""
    return applied(gradient, adjoint) if torch.is_grad_enabled() else None


@leave_alone
def applied(tensor: torch.Tensor, operation: Operation) -> torch.Tensor:
    """See regions.applied()."""
    if operation.is_in_place and tensor.requires_grad and tensor._is_view():
        operation = operation.adjoint.adjoint  # torch asks the view's base what has become of it
    if operation.is_in_place:  # gradients need no node, which would cost them time
        operation(tensor.detach())
        torch.autograd.graph.increment_version(tensor)  # who has saved it notices
        if tensor.requires_grad:
            remember: Any = tensor.register_hook
            remember(partial(_differentiated, operation.adjoint))
        return tensor
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        found: torch.Tensor = operation(tensor)
        return found
    apply: Any = _Applied.apply
    result: torch.Tensor = apply(tensor, operation)
    return result
