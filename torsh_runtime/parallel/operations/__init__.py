"""Provides operations with a backward pass of their own, for tensors of torch and of nn."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torsh_runtime.framework import framework_of
from torsh_runtime.framework.operations import Array, JointOperation
from torsh_runtime.numpy_or_cupy import array_module

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


def applied(operation: JointOperation, *tensors: Any) -> Any:
    """Apply the operation and return its result as a tensor, through which gradients flow.

    Raises TypeError if an argument is no tensor.
    """
    return framework_of(tensors[0]).apply_jointly(operation, *tensors)


def is_recorded(*tensors: Any) -> bool:
    """Return whether a backward pass follows operations on these tensors."""
    is_wanted = framework_of(tensors[0]).is_grad_enabled()
    return is_wanted and any(tensor.requires_grad for tensor in tensors)


def functions_of(array: Array) -> Any:
    """Return torch, numpy or cupy: the module whose functions take the array."""
    return sys.modules["torch"] if is_torch(array) else array_module(array)


def is_finite(array: Array) -> bool:
    """Return whether no element is infinite or NaN."""
    return bool(functions_of(array).isfinite(array).all())


def joined(tensors: Sequence[Any], dim: int) -> Any:
    """Concatenate tensors of torch or nn, or arrays, along a dimension."""
    if hasattr(tensors[0], "requires_grad"):
        return framework_of(tensors[0]).cat(tensors, dim)
    return array_module(tensors[0]).concatenate(tensors, dim)


def is_torch(tensor: object) -> bool:
    """Return whether it is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)
