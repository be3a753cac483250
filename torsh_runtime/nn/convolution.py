"""Implements convolution as one product of matrices for each group of channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torsh_runtime.nn.arrays import Array, array_module
from torsh_runtime.nn.graph import derived, operand
from torsh_runtime.nn.windows import Pair, Windows, pair

if TYPE_CHECKING:
    from torsh_runtime.nn.tensor import Tensor


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Apply a convolution to images. Sizes are a number for both axes, or (vertical, horizontal).

    Args:
        input: The images (N, in, height, width).
        weight: The weight (out, in / groups, *kernel).
        bias: The bias (out), or None.
        stride: The distance between windows.
        padding: The zeros around the image.
        dilation: The distance between the kernel's elements.
        groups: The number of groups of channels.

    Returns:
        The result (N, out, rows, columns).

    Raises:
        ValueError: For shapes that do not fit.

    Example:
        ```python
        images, weight = tr.nn.randn(2, 3, 8, 8), tr.nn.randn(4, 3, 3, 3)
        tr.nn.functional.conv2d(images, weight, padding=1).shape  # (2, 4, 8, 8)
        ```
    """
    value, w, b = operand(input), operand(weight), operand(bias)
    _check(value, w, groups)
    windows = Windows(w.shape[2:], pair(stride), pair(padding), pair(dilation))
    shape = value.shape
    rows, columns = windows.count(shape)
    count, (out, per_group, *kernel) = len(value), w.shape
    inner, xp = per_group * kernel[0] * kernel[1], array_module(value)
    patches = _patches(windows.view(value), groups, inner)
    matrices = w.reshape(groups, out // groups, inner)
    result = matrices @ patches
    result = result.reshape(out, count, rows, columns).swapaxes(0, 1)
    if b is not None:
        result = result + b[:, None, None]

    def by_group(g: Array) -> Array:
        return g.swapaxes(0, 1).reshape(groups, out // groups, -1)

    def for_x(g: Array) -> Array:
        spread = matrices.swapaxes(-1, -2) @ by_group(g)
        spread = spread.reshape(groups * per_group, *kernel, count, rows, columns)
        return windows.gathered(spread.transpose(3, 0, 4, 5, 1, 2), shape)

    return derived(
        xp.ascontiguousarray(result),
        (input, for_x),
        (weight, lambda g: (by_group(g) @ patches.swapaxes(-1, -2)).reshape(w.shape)),
        (bias, lambda g: g.sum(axis=(0, 2, 3))),
    )


def _check(value: Array, weight: Array, groups: int) -> None:
    if value.ndim != 4 or weight.ndim != 4:
        raise ValueError(f"conv2d: x {value.shape} and weight {weight.shape} have four axes each")
    if value.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise ValueError(
            f"conv2d: channels of x {value.shape} and weight {weight.shape} do not fit for "
            f"{groups} groups"
        )


def _patches(view: Array, groups: int, inner: int) -> Array:
    """Return the windows as (groups, elements of a window, all windows)."""
    return view.transpose(1, 4, 5, 0, 2, 3).reshape(groups, inner, -1)
