"""Maps as operations of torsh_runtime.nn."""

from __future__ import annotations

from typing import Any

from torsh_runtime.nn import Function, Tensor
from torsh_runtime.parallel.regions.maps import Map


class _Mapped(Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        tensor, ctx.applied = arguments
        return Tensor(ctx.applied(tensor.data))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return Tensor(ctx.applied.adjoint(gradients[0].data)), None


def mapped(tensor: Tensor, applied: Map) -> Tensor:
    """What the map makes of it, through which gradients flow by way of its adjoint."""
    result: Tensor = _Mapped.apply(tensor, applied)
    return result
