"""Reduces each window of an image to one element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torsh_runtime.nn.arrays import Array, array_module
from torsh_runtime.nn.graph import derived, operand
from torsh_runtime.nn.windows import Pair, Windows, pair

if TYPE_CHECKING:
    from torsh_runtime.nn.tensor import Tensor


def _windows(kernel_size: Pair, stride: Pair | None, padding: Pair) -> Windows:
    step = kernel_size if stride is None else stride
    return Windows(pair(kernel_size), pair(step), pair(padding))


def max_pool2d(
    input: Any, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0
) -> Tensor:
    """Return the largest element of each window of input (N, channels, height, width).

    stride: default kernel_size. Raises ValueError if no window fits.
    """
    value, windows = operand(input), _windows(kernel_size, stride, padding)
    xp = array_module(value)
    view = windows.view(value, -math.inf)
    flat = view.reshape(*view.shape[:-2], math.prod(windows.size))
    places = flat.argmax(axis=-1)[..., None]
    shape, apart, joined = value.shape, view.shape, flat.shape

    def pullback(g: Array) -> Array:
        spread = xp.zeros(joined, g.dtype)
        xp.put_along_axis(spread, places, g[..., None], -1)
        return windows.gathered(spread.reshape(apart), shape)

    return derived(xp.take_along_axis(flat, places, -1)[..., 0], (input, pullback))


def avg_pool2d(
    input: Any, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0
) -> Tensor:
    """Return the mean of each window of input (N, channels, height, width).

    Zeros of the border count. stride: default kernel_size. Raises ValueError if no window fits.
    """
    value, windows = operand(input), _windows(kernel_size, stride, padding)
    view = windows.view(value)
    shape, apart, count = value.shape, view.shape, math.prod(windows.size)

    def pullback(g: Array) -> Array:
        spread = array_module(g).broadcast_to((g / count)[..., None, None], apart)
        return windows.gathered(spread, shape)

    return derived(view.mean(axis=(-2, -1)), (input, pullback))
