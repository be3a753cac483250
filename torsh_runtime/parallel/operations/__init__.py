"""Operations with a backward pass of their own, written once for tensors of torch and of nn."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torsh_runtime.numpy_or_cupy import array_module
from torsh_runtime.parallel.regions.arrays import Array

__all__ = [
    "Array",
    "JointOperation",
    "applied",
    "functions_of",
    "is_finite",
    "is_recorded",
    "is_torch",
    "joined",
]


class JointOperation(ABC):
    """What makes an array of several, and their gradients of its gradient. Arrays are numpy's,
    cupy's or torch's, and stay as they are.
    """

    @abstractmethod
    def forward(self, *arrays: Array) -> tuple[Array, Sequence[Array]]:
        """The result, and what backward needs."""

    @abstractmethod
    def backward(self, gradient: Array, *saved: Array) -> tuple[Array | None, ...]:
        """For each array of forward its gradient."""


def applied(operation: JointOperation, *tensors: Any) -> Any:
    """The result as a tensor, through which gradients flow. TypeError for what is no tensor."""
    if is_torch(tensors[0]):
        from torsh_runtime.parallel.operations.torch import applied_in_torch

        return applied_in_torch(operation, *tensors)
    if _is_nn(tensors[0]):
        from torsh_runtime.parallel.operations.nn import applied_in_nn

        return applied_in_nn(operation, *tensors)
    kind = type(tensors[0])
    raise TypeError(
        f"a {kind.__module__}.{kind.__qualname__} is no tensor of torch or of torsh_runtime.nn"
    )


def is_recorded(*tensors: Any) -> bool:
    """Whether a backward pass follows operations on these."""
    if is_torch(tensors[0]):
        is_wanted = sys.modules["torch"].is_grad_enabled()
    else:
        is_wanted = sys.modules["torsh_runtime.nn"].is_grad_enabled()
    return bool(is_wanted) and any(tensor.requires_grad for tensor in tensors)


def functions_of(array: Array) -> Any:
    """torch, numpy or cupy: the module whose functions it wants."""
    return sys.modules["torch"] if is_torch(array) else array_module(array)


def is_finite(array: Array) -> bool:
    """Whether no element is infinite or NaN."""
    return bool(functions_of(array).isfinite(array).all())


def joined(tensors: Sequence[Any], dim: int) -> Any:
    """Tensors of torch or nn, or arrays, one behind the other along a dimension."""
    if _is_nn(tensors[0]):
        return sys.modules["torsh_runtime.nn"].concat(tensors, dim)
    return functions_of(tensors[0]).concatenate(tensors, dim)


def is_torch(tensor: object) -> bool:
    """Whether it is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def _is_nn(tensor: object) -> bool:
    nn = sys.modules.get("torsh_runtime.nn")
    return nn is not None and isinstance(tensor, nn.Tensor)
