"""Operations in graphs of torsh_runtime.nn."""

from __future__ import annotations

from typing import Any

from torsh_runtime.nn import Function, Tensor
from torsh_runtime.parallel.regions.maps import Operation


class _Applied(Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        tensor, ctx.operation = arguments
        return Tensor(ctx.operation(tensor.data))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return Tensor(ctx.operation.adjoint(gradients[0].data)), None


def applied(tensor: Tensor, operation: Operation) -> Tensor:
    """See regions.applied()."""
    if operation.is_in_place:
        operation(tensor.data)
        return tensor
    result: Tensor = _Applied.apply(tensor, operation)
    return result
