"""Operations of torsh_runtime.nn."""

from __future__ import annotations

from typing import Any

from torsh_runtime.nn import Function, Tensor
from torsh_runtime.nn.graph import operand
from torsh_runtime.parallel.operations import JointOperation


class _Applied(Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        ctx.operation, *tensors = arguments
        result, saved = ctx.operation.forward(*map(operand, tensors))
        ctx.save_for_backward(*saved)
        return Tensor(result)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        found = ctx.operation.backward(gradients[0].data, *ctx.saved_tensors)
        return None, *(None if each is None else Tensor(each) for each in found)


def applied_in_nn(operation: JointOperation, *tensors: Tensor) -> Tensor:
    """The result, through which gradients flow."""
    result: Tensor = _Applied.apply(operation, *tensors)
    return result
