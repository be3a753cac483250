"""Provides operations with a backward pass of their own, for tensors of torch and of nn."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.framework import framework_of
from torsh_runtime.framework.operations import Array, JointOperation
from torsh_runtime.framework.values import functions_of, is_tensor
from torsh_runtime.numpy_or_cupy import array_module

__all__ = [
    "Array",
    "JointOperation",
    "applied",
    "cast",
    "functions_of",
    "indices",
    "is_finite",
    "is_recorded",
    "is_tensor",
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


def is_finite(array: Array) -> bool:
    """Return whether no element is infinite or NaN."""
    return bool(functions_of(array).isfinite(array).all())


def joined(tensors: Sequence[Any], dim: int) -> Any:
    """Concatenate tensors of torch or nn, or arrays, along a dimension."""
    if hasattr(tensors[0], "requires_grad"):
        return framework_of(tensors[0]).cat(tensors, dim)
    return array_module(tensors[0]).concatenate(tensors, dim)


def indices(column: NDArray[np.int64], like: Array) -> Array:
    """Return whole numbers, with which `like` can be indexed."""
    given: Any = like
    found: Array
    if is_tensor(like):
        found = sys.modules["torch"].as_tensor(column, device=given.device)
    else:
        found = array_module(like).asarray(column)
    return found


def cast(array: Array, dtype: Any) -> Array:
    """Return the array itself if it has the dtype, or a converted copy."""
    if array.dtype == dtype:
        return array
    given: Any = array
    found: Array = given.to(dtype) if is_tensor(array) else given.astype(dtype)
    return found
