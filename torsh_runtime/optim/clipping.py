"""Clips gradients by their norm or their elements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from torsh_runtime.nn.arrays import Array, array_module, computable
from torsh_runtime.nn.graph import Variable
from torsh_runtime.nn.tensor import Tensor


def _gradients(parameters: Any) -> list[Array]:
    each: Iterable[Any] = [parameters] if isinstance(parameters, Variable) else parameters
    return [param.grad.data for param in each if param.grad is not None]


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale all gradients so that their norm, taken as one vector, is at most max_norm.

    For models that are spread over ranks use tr.clip_grad_norm_().

    Args:
        parameters: A tensor, or tensors, in this process.
        max_norm: The largest norm that gradients keep.
        norm_type: The exponent p of the norm; inf is the largest absolute value.
        error_if_nonfinite: Whether an infinite or undefined norm is an error.

    Returns:
        The norm before scaling as a float32 tensor.

    Raises:
        RuntimeError: With error_if_nonfinite if the norm is infinite or undefined; the gradients
            are then unchanged.

    Example:
        ```python
        loss.backward()
        norm = tr.optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ```
    """
    gradients = _gradients(parameters)
    total = _norm(gradients, norm_type)
    if error_if_nonfinite and not math.isfinite(total):
        raise RuntimeError(f"the norm of the gradients is {total}, so they cannot be clipped")
    factor = max_norm / (total + 1e-6)
    if not factor >= 1:
        for gradient in gradients:
            gradient *= factor
    return Tensor(np.float32(total))


def _norm(arrays: list[Array], kind: float) -> float:
    """Return the norm of all arrays as one vector; partial norms are combined in float64."""
    norms = [
        float(array_module(array).linalg.norm(computable(array).reshape(-1), kind))
        for array in arrays
        if array.size
    ]
    return float(np.linalg.norm(np.asarray(norms, np.float64), kind)) if norms else 0.0


def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Clip each element of all gradients to [-clip_value, clip_value], in place.

    Args:
        parameters: A tensor, or tensors.
        clip_value: The largest absolute value.

    Example:
        ```python
        loss.backward()
        tr.optim.clip_grad_value_(model.parameters(), 0.5)
        ```
    """
    for gradient in _gradients(parameters):
        array_module(gradient).clip(gradient, -clip_value, clip_value, out=gradient)
