"""Implements activation functions, softmax and dropout.

Functions of several steps are computed in blocks that stay in the cache, together with their
slopes, so that the backward pass is one multiplication.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from torsh_runtime.nn import random
from torsh_runtime.nn.arrays import Array, array_module, blocks
from torsh_runtime.nn.elementwise import logistic
from torsh_runtime.nn.graph import derived, needs_gradient, operand

if TYPE_CHECKING:
    from torsh_runtime.nn.tensor import Tensor

Curve = Callable[[Array], tuple[Array, Array]]
"""Returns the values at the elements of an array, and the slopes there."""
_BEND = 0.044715
_STRETCH = math.sqrt(2 / math.pi)
_FARTHEST = 6.0
"""Magnitude from which on erf is 1 in float64."""


def relu(input: Any) -> Tensor:
    """Return max(input, 0) elementwise.

    Example:
        ```python
        tr.nn.functional.relu(tr.nn.tensor([-1.0, 2.0])).tolist()  # [0.0, 2.0]
        ```
    """
    value = operand(input)
    result = array_module(value).maximum(value, 0)
    return derived(result, (input, lambda g: g * (result > 0)))


def gelu(input: Any, approximate: str = "none") -> Tensor:
    """Return input · Φ(input), where Φ is the normal distribution's cumulative function.

    Args:
        input: A tensor or an array.
        approximate: "none", or "tanh" for the approximation (Hendrycks and Gimpel, "Gaussian Error
            Linear Units", 2016).

    Raises:
        ValueError: For a different `approximate`.

    Example:
        ```python
        hidden = tr.nn.functional.gelu(x, approximate="tanh")
        ```
    """
    curves = {"none": _gelu, "tanh": _gelu_by_tanh}
    if approximate not in curves:
        raise ValueError(f"gelu approximates by 'none' or 'tanh', not by {approximate!r}")
    return _along(input, curves[approximate])


def silu(input: Any) -> Tensor:
    """Return input · sigmoid(input) elementwise.

    Example:
        ```python
        hidden = tr.nn.functional.silu(x)
        ```
    """
    return _along(input, _silu)


def _along(x: Any, curve: Curve) -> Tensor:
    shape, flat = operand(x).shape, operand(x).reshape(-1)
    xp = array_module(flat)
    result = xp.empty_like(flat)
    slopes = xp.empty_like(flat) if needs_gradient(x) else None
    for block in blocks(flat):
        result[block], slope = curve(flat[block])
        if slopes is not None:
            slopes[block] = slope
    return derived(result.reshape(shape), (x, lambda g: g * slopes.reshape(shape)))  # type: ignore[union-attr]


def _silu(x: Array) -> tuple[Array, Array]:
    gate = logistic(x)
    result = x * gate
    return result, gate + result * (1 - gate)


def _gelu_by_tanh(x: Array) -> tuple[Array, Array]:
    square = x * x
    inner = square * (_BEND * _STRETCH)
    inner += _STRETCH
    inner *= x
    xp = array_module(x)
    bent = xp.tanh(inner, out=inner)
    half = 0.5 * bent
    half += 0.5
    square *= 3 * _BEND * _STRETCH
    square += _STRETCH
    square *= x
    square *= 0.5
    bent *= bent
    square *= xp.subtract(1, bent, out=bent)
    square += half
    half *= x
    return half, square


def _gelu(x: Array) -> tuple[Array, Array]:
    xp = array_module(x)
    below = 0.5 * erf(x * math.sqrt(0.5)) + 0.5
    density = xp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return x * below, below + x * density


def erf(x: Array) -> Array:
    """Return the error function, to within a few units of the last place of 1.

    For |x| it is 1 - t·exp(p(t) - x²) with t = 2 / (2 + |x|) and a polynomial p, interpolated at
    Chebyshev's nodes (after Numerical Recipes, section 6.2).
    """
    xp = array_module(x)
    size = xp.minimum(abs(x), _FARTHEST)
    t = 2 / (2 + size)
    first, *rest = _polynomial(10 if x.dtype == np.float32 else 26)
    place = (t - _MIDDLE) * (1 / _HALF_WIDTH)
    exponent = first * place
    for coefficient in rest[:-1]:
        exponent += coefficient
        exponent *= place
    exponent += rest[-1]
    return xp.sign(x) * (1 - t * xp.exp(exponent - size * size))


_MIDDLE = 0.5 * (1 + 2 / (2 + _FARTHEST))
_HALF_WIDTH = 1 - _MIDDLE


@lru_cache
def _polynomial(degree: int) -> list[float]:
    """Return p's coefficients, highest power first, for t mapped from its bounds to -1 and 1."""

    def exponent(place: float) -> float:
        t = _MIDDLE + _HALF_WIDTH * place
        size = 2 / t - 2
        return math.log(math.erfc(size) / t) + size * size

    series = np.polynomial.chebyshev.chebinterpolate(np.vectorize(exponent), degree)
    return [float(c) for c in np.polynomial.chebyshev.cheb2poly(series)[::-1]]


def softmax(input: Any, dim: int = -1) -> Tensor:
    """Return exp(input) divided by its sum along an axis.

    Args:
        input: A tensor or an array.
        dim: The axis.

    Example:
        ```python
        tr.nn.functional.softmax(tr.nn.tensor([1.0, 1.0])).tolist()  # [0.5, 0.5]
        ```
    """
    result = normalised(operand(input).copy(), dim)

    def pullback(g: Array) -> Array:
        own = g * result
        own -= result * own.sum(axis=dim, keepdims=True)
        return own

    return derived(result, (input, pullback))


def normalised(scores: Array, dim: int = -1) -> Array:
    """Apply softmax in place; the result is zero if all scores are -inf."""
    if not scores.size:
        return scores
    xp = array_module(scores)
    highest = scores.max(axis=dim, keepdims=True)
    scores -= xp.where(xp.isfinite(highest), highest, 0)
    xp.exp(scores, out=scores)
    total = scores.sum(axis=dim, keepdims=True)
    scores *= 1 / xp.where(total == 0, 1, total)
    return scores


def log_softmax(input: Any, dim: int = -1) -> Tensor:
    """Return the logarithm of softmax along an axis.

    Args:
        input: A tensor or an array.
        dim: The axis.

    Example:
        ```python
        logs = tr.nn.functional.log_softmax(scores, dim=-1)
        ```
    """
    result = log_normalised(operand(input), dim)
    xp = array_module(result)
    return derived(result, (input, lambda g: g - xp.exp(result) * g.sum(axis=dim, keepdims=True)))


def log_normalised(scores: Array, dim: int) -> Array:
    """Return log_softmax of an array."""
    if not scores.size:
        return scores
    xp = array_module(scores)
    logs = scores - scores.max(axis=dim, keepdims=True)
    logs -= xp.log(xp.exp(logs).sum(axis=dim, keepdims=True))
    return logs


def dropout(input: Any, p: float = 0.5, training: bool = True) -> Tensor:
    """Set each element to 0 with probability p, else divide it by 1 - p.

    Args:
        input: A tensor or an array.
        p: The probability.
        training: False returns the input itself.

    Raises:
        ValueError: If `p` is no probability.

    Example:
        ```python
        hidden = tr.nn.functional.dropout(x, 0.1, training=self.training)
        ```
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p is a probability, not {p}")
    if not training or p == 0:
        return input  # type: ignore[no-any-return]
    value = operand(input)
    factors = random.kept(value, p)
    return derived(value * factors, (input, lambda g: g * factors))
