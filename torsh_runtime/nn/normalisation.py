"""Implements layer and RMS normalisation, forward and backward in blocks of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torsh_runtime.nn.arrays import Array, array_module, blocks
from torsh_runtime.nn.graph import derived_jointly, operand

if TYPE_CHECKING:
    from torsh_runtime.nn.tensor import Tensor


def layer_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Tensor:
    """Scale and shift the last axes to mean 0 and variance 1, then apply weight and bias.

    See Ba, Kiros and Hinton, "Layer Normalization", 2016.

    Args:
        input: A tensor or an array (…, *normalized_shape).
        normalized_shape: The sizes of the last axes.
        weight: The factors, of shape normalized_shape, or None.
        bias: The summands, of shape normalized_shape, or None.
        eps: Added to the variance.

    Raises:
        ValueError: If the input's last axes differ.

    Example:
        ```python
        tr.nn.functional.layer_norm(tr.nn.randn(5, 16), (16,)).shape  # (5, 16)
        ```
    """
    return _normalised(input, tuple(normalized_shape), weight, bias, eps, centred=True)


def rms_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Tensor:
    """Scale the last axes to mean square 1, then apply weight.

    See Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.

    Args:
        input: A tensor or an array (…, *normalized_shape).
        normalized_shape: The sizes of the last axes.
        weight: The factors, of shape normalized_shape, or None.
        eps: Added to the mean square; None is the dtype's own.

    Raises:
        ValueError: If the input's last axes differ.

    Example:
        ```python
        tr.nn.functional.rms_norm(tr.nn.randn(5, 16), (16,)).shape  # (5, 16)
        ```
    """
    least = float(np.finfo(operand(input).dtype).eps) if eps is None else eps
    return _normalised(input, tuple(normalized_shape), weight, None, least, centred=False)


def _normalised(
    x: Any, shape: tuple[int, ...], weight: Any, bias: Any, eps: float, centred: bool
) -> Tensor:
    value, scale, shift = operand(x), operand(weight), operand(bias)
    if value.shape[value.ndim - len(shape) :] != shape:
        raise ValueError(f"the last axes of {value.shape} are not those to normalise, {shape}")
    size = int(np.prod(shape))
    rows = value.reshape(-1, size)
    flat_scale = None if scale is None else scale.reshape(size)
    unit, inverse = _to_unit(rows, eps, centred)
    result = unit if scale is None else unit * flat_scale
    if shift is not None:
        result = result + shift.reshape(size)

    def pullback(g: Array) -> tuple[Array, Array, Array]:
        gradient = g.reshape(-1, size)
        for_x = _from_unit(gradient, unit, inverse, flat_scale, centred)
        for_scale = array_module(g).einsum("rs,rs->s", gradient, unit).reshape(shape)
        return for_x.reshape(g.shape), for_scale, gradient.sum(axis=0).reshape(shape)

    return derived_jointly(result.reshape(value.shape), (x, weight, bias), pullback)


def _to_unit(rows: Array, eps: float, centred: bool) -> tuple[Array, Array]:
    """Return the normalised rows, and the factor of each row."""
    xp = array_module(rows)
    unit, inverse = xp.empty_like(rows), xp.empty((len(rows), 1), rows.dtype)
    for block in blocks(rows):
        part = unit[block]
        part[...] = rows[block]
        if centred:
            part -= part.mean(axis=1, keepdims=True)
        inverse[block] = 1 / xp.sqrt((part * part).mean(axis=1, keepdims=True) + eps)
        part *= inverse[block]
    return unit, inverse


def _from_unit(
    gradient: Array, unit: Array, inverse: Array, scale: Array | None, centred: bool
) -> Array:
    """Return the gradient of the rows before they were normalised."""
    result = array_module(gradient).empty_like(unit)
    for block in blocks(gradient):
        part, own = result[block], unit[block]
        part[...] = gradient[block] if scale is None else gradient[block] * scale
        along = (part * own).mean(axis=1, keepdims=True)
        if centred:
            part -= part.mean(axis=1, keepdims=True)
        part -= own * along
        part *= inverse[block]
    return result
