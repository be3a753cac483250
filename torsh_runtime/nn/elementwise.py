"""Defines operations on each element, with numpy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from torsh_runtime.nn.arrays import Array, array_module, dtype_named, fitted, is_array
from torsh_runtime.nn.graph import derived, operand

if TYPE_CHECKING:
    from torsh_runtime.nn.tensor import Tensor


_KINDS = {"b": 0, "u": 1, "i": 1, "f": 2}


def _fit(value: Any) -> Callable[[Array], Array]:
    """Return what fits a gradient to this operand's shape, without keeping the operand."""
    shape = getattr(value, "shape", ())
    return lambda g: fitted(g, shape)


def _operands(a: Any, b: Any) -> tuple[Any, Any]:
    """Return both operands in compatible dtypes.

    As in torch, an operand of a lower kind (boolean, integer, floating point) is converted to the
    other's dtype; among equal kinds the operand without axes is.
    """
    x, y = operand(a), operand(b)
    if not is_array(x) or not is_array(y) or x.dtype == y.dtype:
        return x, y
    ranks = [(_KINDS.get(array.dtype.kind, 3), array.ndim > 0) for array in (x, y)]
    if ranks[0] == ranks[1]:
        return x, y
    return (x, y.astype(x.dtype)) if ranks[0] > ranks[1] else (x.astype(y.dtype), y)


def add(a: Any, b: Any) -> Tensor:
    """Return a + b."""
    x, y = _operands(a, b)
    return derived(x + y, (a, _fit(x)), (b, _fit(y)))


def subtract(a: Any, b: Any) -> Tensor:
    """Return a - b."""
    x, y = _operands(a, b)
    fit = _fit(y)
    return derived(x - y, (a, _fit(x)), (b, lambda g: -fit(g)))


def multiply(a: Any, b: Any) -> Tensor:
    """Return a · b."""
    x, y = _operands(a, b)
    to_a, to_b = _fit(x), _fit(y)
    return derived(x * y, (a, lambda g: to_a(g * y)), (b, lambda g: to_b(g * x)))


def divide(a: Any, b: Any) -> Tensor:
    """Return a / b."""
    x, y = _operands(a, b)
    to_a, to_b = _fit(x), _fit(y)
    return derived(x / y, (a, lambda g: to_a(g / y)), (b, lambda g: to_b(-g * x / (y * y))))


def power(a: Any, b: Any) -> Tensor:
    """Return a to the power of b.

    Where a is 0, the gradient for b is 0; where b is 0, that for a is 0.
    """
    x, y = _operands(a, b)
    result = x**y

    def for_base(g: Array) -> Array:
        return _fit(x)(g * _slope_of_power(x, y))

    def for_exponent(g: Array) -> Array:
        xp = array_module(g)
        return _fit(y)(g * result * xp.log(xp.where(xp.asarray(x) == 0, 1, x)))

    return derived(result, (a, for_base), (b, for_exponent))


def _slope_of_power(x: Array, y: Any) -> Any:
    if not is_array(y):
        return y * x ** (y - 1) if y else 0 * x
    xp = array_module(x)
    return xp.where(y == 0, 0, y * x ** xp.where(y == 0, 1, y - 1))


def negative(x: Any) -> Tensor:
    """Return -x."""
    return derived(-operand(x), (x, lambda g: -g))


def absolute(x: Any) -> Tensor:
    """Return the absolute value; the gradient at 0 is 0."""
    value = operand(x)
    return derived(abs(value), (x, lambda g: g * array_module(g).sign(value)))


def exp(x: Any) -> Tensor:
    """Return e to the power of x."""
    result = array_module(operand(x)).exp(operand(x))
    return derived(result, (x, lambda g: g * result))


def log(x: Any) -> Tensor:
    """Return the natural logarithm."""
    value = operand(x)
    return derived(array_module(value).log(value), (x, lambda g: g / value))


def sqrt(x: Any) -> Tensor:
    """Return the square root."""
    result = array_module(operand(x)).sqrt(operand(x))
    return derived(result, (x, lambda g: g / (2 * result)))


def sin(x: Any) -> Tensor:
    """Return the sine of x in radians."""
    value, xp = operand(x), array_module(operand(x))
    return derived(xp.sin(value), (x, lambda g: g * xp.cos(value)))


def cos(x: Any) -> Tensor:
    """Return the cosine of x in radians."""
    value, xp = operand(x), array_module(operand(x))
    return derived(xp.cos(value), (x, lambda g: -g * xp.sin(value)))


def tanh(input: Any) -> Tensor:
    """Return the hyperbolic tangent of `input`, elementwise.

    Example:
        ```python
        tr.nn.functional.tanh(tr.nn.tensor([0.0])).tolist()  # [0.0]
        ```
    """
    result = array_module(operand(input)).tanh(operand(input))
    return derived(result, (input, lambda g: g * (1 - result * result)))


def sigmoid(input: Any) -> Tensor:
    """Return 1 / (1 + exp(-input)), elementwise.

    Example:
        ```python
        tr.nn.functional.sigmoid(tr.nn.tensor([0.0])).tolist()  # [0.5]
        ```
    """
    result = logistic(operand(input))
    return derived(result, (input, lambda g: g * (result * (1 - result))))


def logistic(value: Array) -> Array:
    """Return the sigmoid of an array, computed with tanh, which cannot overflow."""
    return 0.5 * array_module(value).tanh(0.5 * value) + 0.5


def maximum(a: Any, b: Any) -> Tensor:
    """Return the larger of two elements; equal ones share the gradient.

    Args:
        a: A tensor, an array or a number.
        b: A tensor, an array or a number; both are broadcast.

    Example:
        ```python
        tr.nn.maximum(tr.nn.tensor([1.0, 5.0]), 3.0).tolist()  # [3.0, 5.0]
        ```
    """
    return _chosen(a, b, array_module(operand(a)).maximum)


def minimum(a: Any, b: Any) -> Tensor:
    """Return the smaller of two elements; equal ones share the gradient.

    Args:
        a: A tensor, an array or a number.
        b: A tensor, an array or a number; both are broadcast.

    Example:
        ```python
        tr.nn.minimum(tr.nn.tensor([1.0, 5.0]), 3.0).tolist()  # [1.0, 3.0]
        ```
    """
    return _chosen(a, b, array_module(operand(a)).minimum)


def _chosen(a: Any, b: Any, choose: Callable[[Any, Any], Array]) -> Tensor:
    x, y = _operands(a, b)
    result = choose(x, y)

    def share(mine: Any, other: Any) -> Callable[[Array], Array]:
        def pullback(g: Array) -> Array:
            part = (mine == result) * (1 - 0.5 * (mine == other))
            return _fit(mine)(g * part.astype(g.dtype))

        return pullback

    return derived(result, (a, share(x, y)), (b, share(y, x)))


def clamp(x: Any, min: float | None = None, max: float | None = None) -> Tensor:
    """Return x limited to [min, max]; the gradient outside is 0."""
    value = operand(x)
    xp = array_module(value)
    result = xp.clip(value, min, max)
    return derived(result, (x, lambda g: g * (result == value)))


def where(condition: Any, a: Any, b: Any) -> Tensor:
    """Return a where the condition holds, and b elsewhere.

    Args:
        condition: Booleans, a tensor or an array.
        a: A tensor, an array or a number.
        b: A tensor, an array or a number; all are broadcast.

    Example:
        ```python
        x = tr.nn.tensor([-1.0, 2.0])
        tr.nn.where(x > 0, x, 0.0).tolist()  # [0.0, 2.0]
        ```
    """
    mask, (x, y) = operand(condition), _operands(a, b)
    xp = array_module(mask)
    to_a, to_b = _fit(x), _fit(y)
    return derived(
        xp.where(mask, x, y),
        (a, lambda g: to_a(xp.where(mask, g, 0))),
        (b, lambda g: to_b(xp.where(mask, 0, g))),
    )


def masked_fill(x: Any, mask: Any, value: float) -> Tensor:
    """Return x with `value` where the mask holds."""
    filled = array_module(operand(x)).asarray(value, dtype=operand(x).dtype)
    return where(mask, filled, x)


def cast(x: Any, dtype: Any) -> Tensor:
    """Return x in another dtype; the gradient comes back in x's dtype."""
    kind = dtype_named(dtype)
    return derived(x.data.astype(kind, copy=False), (x, lambda g: g))


def compared(name: str) -> Callable[[Any, Any], Tensor]:
    """Return the comparison operator of that name, such as "__lt__", with boolean results."""

    def compare(a: Any, b: Any) -> Any:
        value = operand(b)
        if not is_array(value) and not isinstance(value, (bool, int, float, np.generic)):
            return NotImplemented
        return derived(getattr(operand(a), name)(value))

    return compare
