"""Operations of torch's autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from torsh_runtime.integrations.torch.compiling import leave_alone
from torsh_runtime.parallel.operations import JointOperation


class _Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operation: JointOperation, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.operation = operation
        result: torch.Tensor
        result, saved = operation.forward(*tensors)
        ctx.save_for_backward(*saved)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, *ctx.operation.backward(gradients[0], *ctx.saved_tensors)


@leave_alone
def applied_in_torch(operation: JointOperation, *tensors: torch.Tensor) -> torch.Tensor:
    """The result, through which gradients flow."""
    apply: Any = _Applied.apply
    result: torch.Tensor = apply(operation, *tensors)
    return result
