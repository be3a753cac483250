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
    """Return the largest element of each window of images.

    Args:
        input: The images (N, channels, height, width).
        kernel_size: The size of a window, a number or (vertical, horizontal).
        stride: The distance between windows; None is kernel_size.
        padding: The border around the image, which is never the largest.

    Raises:
        ValueError: If no window fits.

    Example:
        ```python
        tr.nn.functional.max_pool2d(tr.nn.randn(1, 3, 8, 8), 2).shape  # (1, 3, 4, 4)
        ```
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
    """Return the mean of each window of images.

    Args:
        input: The images (N, channels, height, width).
        kernel_size: The size of a window, a number or (vertical, horizontal).
        stride: The distance between windows; None is kernel_size.
        padding: The border of zeros around the image, which count.

    Raises:
        ValueError: If no window fits.

    Example:
        ```python
        tr.nn.functional.avg_pool2d(tr.nn.randn(1, 3, 8, 8), 2).shape  # (1, 3, 4, 4)
        ```
    """
    value, windows = operand(input), _windows(kernel_size, stride, padding)
    view = windows.view(value)
    shape, apart, count = value.shape, view.shape, math.prod(windows.size)

    def pullback(g: Array) -> Array:
        spread = array_module(g).broadcast_to((g / count)[..., None, None], apart)
        return windows.gathered(spread, shape)

    return derived(view.mean(axis=(-2, -1)), (input, pullback))
