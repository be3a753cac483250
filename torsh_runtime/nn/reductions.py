"""Defines operations that reduce axes. `dim` is one axis, several or None for all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

from torsh_runtime.nn.arrays import Array, array_module
from torsh_runtime.nn.graph import derived, operand

if TYPE_CHECKING:
    from torsh_runtime.nn.tensor import Tensor

Dim: TypeAlias = int | tuple[int, ...] | None


def _axes(dim: Dim | list[int]) -> Dim:
    return tuple(dim) if isinstance(dim, list) else dim


def _count(value: Array, dim: Dim) -> int:
    axes = range(value.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    return math.prod(value.shape[axis] for axis in axes)


def spread(gradient: Array, shape: tuple[int, ...], dim: Dim, keepdim: bool) -> Array:
    """Repeat a reduction's gradient along the reduced axes, as a view that must not be written."""
    xp = array_module(gradient)
    if dim is None:
        gradient = xp.reshape(gradient, (1,) * len(shape))
    elif not keepdim:
        gradient = xp.expand_dims(gradient, dim)
    return xp.broadcast_to(gradient, shape)


def sum(x: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Return the sum."""
    value, dim = operand(x), _axes(dim)
    shape = value.shape
    result = value.sum(axis=dim, keepdims=keepdim)
    return derived(result, (x, lambda g: spread(g, shape, dim, keepdim)))


def mean(x: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Return the mean."""
    value, dim = operand(x), _axes(dim)
    shape, count = value.shape, _count(value, dim)
    result = value.mean(axis=dim, keepdims=keepdim)
    return derived(result, (x, lambda g: spread(g / count, shape, dim, keepdim)))


def var(x: Any, dim: Any = None, keepdim: bool = False, correction: int = 1) -> Tensor:
    """Return the variance, divided by the number of elements minus `correction`."""
    value, dim = operand(x), _axes(dim)
    count = _count(value, dim) - correction
    centred = value - value.mean(axis=dim, keepdims=True)
    result = value.var(axis=dim, keepdims=keepdim, ddof=correction)

    def pullback(g: Array) -> Array:
        return (
            spread(g, centred.shape, dim, keepdim)
            * centred
            * (2 / count if count > 0 else math.nan)
        )

    return derived(result, (x, pullback))


def max(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the largest element; with `dim`, a pair of the largest elements and their indices."""
    return _extreme(x, dim, keepdim, "max")


def min(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the smallest element; with `dim`, a pair of the smallest elements and their
    indices."""
    return _extreme(x, dim, keepdim, "min")


def _extreme(x: Any, dim: int | None, keepdim: bool, name: str) -> Any:
    value = operand(x)
    if dim is None:
        return _of_all(x, getattr(value, name)())
    xp = array_module(value)
    places = xp.expand_dims(getattr(value, "arg" + name)(axis=dim), dim)
    found = xp.take_along_axis(value, places, dim)
    shape, dtype = value.shape, value.dtype

    def pullback(g: Array) -> Array:
        result = xp.zeros(shape, dtype)
        xp.put_along_axis(result, places, g if keepdim else xp.expand_dims(g, dim), dim)
        return result

    if keepdim:
        return derived(found, (x, pullback)), derived(places)
    return derived(found.squeeze(dim), (x, pullback)), derived(places.squeeze(dim))


def _of_all(x: Any, result: Any) -> Tensor:
    """Return the extreme element of all; equal elements share the gradient."""
    value = operand(x)

    def pullback(g: Array) -> Array:
        equal = value == result
        return equal * (g / equal.sum()).astype(g.dtype)

    return derived(result, (x, pullback))


def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index of the largest element along `dim`, or in the flattened array."""
    return derived(operand(x).argmax(axis=dim, keepdims=keepdim))


def argmin(x: Any, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index of the smallest element along `dim`, or in the flattened array."""
    return derived(operand(x).argmin(axis=dim, keepdims=keepdim))
