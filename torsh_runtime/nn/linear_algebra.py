"""Multiplies matrices with as few and as large products as possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torsh_runtime.nn.arrays import Array, array_module, fitted, rows_of
from torsh_runtime.nn.graph import derived, operand

if TYPE_CHECKING:
    from torsh_runtime.nn.tensor import Tensor


def matmul(a: Any, b: Any) -> Tensor:
    """Return a @ b for vectors, matrices, and batches of matrices, which are broadcast.

    Args:
        a: A tensor or an array (…, n, k), or (k).
        b: A tensor or an array (…, k, m), or (k).

    Raises:
        ValueError: For scalars, and if the inner sizes differ.

    Example:
        ```python
        tr.nn.matmul(tr.nn.randn(2, 3), tr.nn.randn(3, 4)).shape  # (2, 4)
        ```
    """
    x, y = operand(a), operand(b)
    _check(x, y)
    if x.ndim > 2 and y.ndim == 2:
        return _rows_by_matrix(a, b)
    return derived(x @ y, (a, lambda g: _for_left(g, x, y)), (b, lambda g: _for_right(g, x, y)))


def _check(x: Array, y: Array) -> None:
    if not x.ndim or not y.ndim:
        raise ValueError("matmul is for vectors and matrices; multiply by a scalar with *")
    if x.shape[-1] != y.shape[-2 if y.ndim > 1 else 0]:
        raise ValueError(f"shapes {x.shape} and {y.shape} do not fit: the inner sizes differ")


def _rows_by_matrix(a: Any, b: Any) -> Tensor:
    """Compute one large product instead of a batch of small ones."""
    x, y = operand(a), operand(b)
    rows = rows_of(x)
    return derived(
        (rows @ y).reshape(*x.shape[:-1], y.shape[-1]),
        (a, lambda g: (rows_of(g) @ y.T).reshape(x.shape)),
        (b, lambda g: rows.T @ rows_of(g)),
    )


def _for_left(g: Array, x: Array, y: Array) -> Array:
    if y.ndim == 1:
        return g[..., None] * y if x.ndim > 1 else g * y
    if x.ndim == 1:
        return fitted((y @ g[..., None])[..., 0], x.shape)
    return fitted(g @ y.swapaxes(-1, -2), x.shape)


def _for_right(g: Array, x: Array, y: Array) -> Array:
    if x.ndim == 1:
        return x[:, None] * g[..., None, :] if y.ndim > 1 else x * g
    if y.ndim == 1:
        return fitted((x.swapaxes(-1, -2) @ g[..., None])[..., 0], y.shape)
    return fitted(x.swapaxes(-1, -2) @ g, y.shape)


def linear(input: Any, weight: Any, bias: Any = None) -> Tensor:
    """Return input @ weight.T + bias.

    Args:
        input: A tensor or an array (…, in).
        weight: The weight (out, in).
        bias: The bias (out), or None.

    Raises:
        ValueError: If the sizes differ.

    Example:
        ```python
        tr.nn.functional.linear(tr.nn.randn(5, 8), tr.nn.randn(2, 8)).shape  # (5, 2)
        ```
    """
    value, w, b = operand(input), operand(weight), operand(bias)
    if value.shape[-1:] != w.shape[1:]:
        raise ValueError(
            f"linear: the last axis of input {value.shape} is not in_features of weight {w.shape}"
        )
    rows = rows_of(value)
    result = rows @ w.T
    if b is not None:
        result += b

    def flat(g: Array) -> Array:
        return rows_of(array_module(g).ascontiguousarray(g))

    return derived(
        result.reshape(*value.shape[:-1], w.shape[0]),
        (input, lambda g: (flat(g) @ w).reshape(value.shape)),
        (weight, lambda g: flat(g).T @ rows),
        (bias, lambda g: flat(g).sum(axis=0)),
    )
