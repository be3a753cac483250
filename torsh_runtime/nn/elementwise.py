"""Operations on each element, with numpy's broadcasting."""

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
    """What makes a gradient one of this operand, which is not kept."""
    shape = getattr(value, "shape", ())
    return lambda g: fitted(g, shape)


def _operands(a: Any, b: Any) -> tuple[Any, Any]:
    """Both operands. As in torch, of booleans, integers and floating point numbers the lower kind
    becomes of the other's type, and among equals that without axes.
    """
    x, y = operand(a), operand(b)
    if not is_array(x) or not is_array(y) or x.dtype == y.dtype:
        return x, y
    ranks = [(_KINDS.get(array.dtype.kind, 3), array.ndim > 0) for array in (x, y)]
    if ranks[0] == ranks[1]:
        return x, y
    return (x, y.astype(x.dtype)) if ranks[0] > ranks[1] else (x.astype(y.dtype), y)


def add(a: Any, b: Any) -> Tensor:
    """a + b."""
    x, y = _operands(a, b)
    return derived(x + y, (a, _fit(x)), (b, _fit(y)))


def subtract(a: Any, b: Any) -> Tensor:
    """a - b."""
    x, y = _operands(a, b)
    fit = _fit(y)
    return derived(x - y, (a, _fit(x)), (b, lambda g: -fit(g)))


def multiply(a: Any, b: Any) -> Tensor:
    """a · b."""
    x, y = _operands(a, b)
    to_a, to_b = _fit(x), _fit(y)
    return derived(x * y, (a, lambda g: to_a(g * y)), (b, lambda g: to_b(g * x)))


def divide(a: Any, b: Any) -> Tensor:
    """a / b."""
    x, y = _operands(a, b)
    to_a, to_b = _fit(x), _fit(y)
    return derived(x / y, (a, lambda g: to_a(g / y)), (b, lambda g: to_b(-g * x / (y * y))))


def power(a: Any, b: Any) -> Tensor:
    """a to the power of b. Where a is 0 the gradient for b is 0, as is that for a where b is 0."""
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
    """-x."""
    return derived(-operand(x), (x, lambda g: -g))


def absolute(x: Any) -> Tensor:
    """The absolute value; the gradient at 0 is 0."""
    value = operand(x)
    return derived(abs(value), (x, lambda g: g * array_module(g).sign(value)))


def exp(x: Any) -> Tensor:
    """e to the power of x."""
    result = array_module(operand(x)).exp(operand(x))
    return derived(result, (x, lambda g: g * result))


def log(x: Any) -> Tensor:
    """The natural logarithm."""
    value = operand(x)
    return derived(array_module(value).log(value), (x, lambda g: g / value))


def sqrt(x: Any) -> Tensor:
    """The square root."""
    result = array_module(operand(x)).sqrt(operand(x))
    return derived(result, (x, lambda g: g / (2 * result)))


def sin(x: Any) -> Tensor:
    """The sine of radians."""
    value, xp = operand(x), array_module(operand(x))
    return derived(xp.sin(value), (x, lambda g: g * xp.cos(value)))


def cos(x: Any) -> Tensor:
    """The cosine of radians."""
    value, xp = operand(x), array_module(operand(x))
    return derived(xp.cos(value), (x, lambda g: -g * xp.sin(value)))


def tanh(input: Any) -> Tensor:
    """The hyperbolic tangent."""
    result = array_module(operand(input)).tanh(operand(input))
    return derived(result, (input, lambda g: g * (1 - result * result)))


def sigmoid(input: Any) -> Tensor:
    """1 / (1 + exp(-input))."""
    result = logistic(operand(input))
    return derived(result, (input, lambda g: g * (result * (1 - result))))


def logistic(value: Array) -> Array:
    """The sigmoid of an array, by way of tanh, which cannot overflow."""
    return 0.5 * array_module(value).tanh(0.5 * value) + 0.5


def maximum(a: Any, b: Any) -> Tensor:
    """The larger of two elements; equal ones share the gradient."""
    return _chosen(a, b, array_module(operand(a)).maximum)


def minimum(a: Any, b: Any) -> Tensor:
    """The smaller of two elements; equal ones share the gradient."""
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
    """x within [min, max]; outside of it the gradient is 0."""
    value = operand(x)
    xp = array_module(value)
    result = xp.clip(value, min, max)
    return derived(result, (x, lambda g: g * (result == value)))


def where(condition: Any, a: Any, b: Any) -> Tensor:
    """a where the condition holds, b elsewhere."""
    mask, (x, y) = operand(condition), _operands(a, b)
    xp = array_module(mask)
    to_a, to_b = _fit(x), _fit(y)
    return derived(
        xp.where(mask, x, y),
        (a, lambda g: to_a(xp.where(mask, g, 0))),
        (b, lambda g: to_b(xp.where(mask, 0, g))),
    )


def masked_fill(x: Any, mask: Any, value: float) -> Tensor:
    """x, but `value` where the mask holds."""
    filled = array_module(operand(x)).asarray(value, dtype=operand(x).dtype)
    return where(mask, filled, x)


def cast(x: Any, dtype: Any) -> Tensor:
    """x as another dtype; its gradient comes back as the dtype of x."""
    kind = dtype_named(dtype)
    return derived(x.data.astype(kind, copy=False), (x, lambda g: g))


def compared(name: str) -> Callable[[Any, Any], Tensor]:
    """The comparison operator of that name, such as "__lt__"; its results are booleans."""

    def compare(a: Any, b: Any) -> Any:
        value = operand(b)
        if not is_array(value) and not isinstance(value, (bool, int, float, np.generic)):
            return NotImplemented
        return derived(getattr(operand(a), name)(value))

    return compare
