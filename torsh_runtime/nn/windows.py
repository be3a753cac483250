"""Computes windows that slide over the last two axes of (N, channels, height, width)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

from torsh_runtime.nn.arrays import Array, array_module

Pair: TypeAlias = int | tuple[int, int]


def pair(value: Pair) -> tuple[int, int]:
    """Return a pair from one number for both axes, or one for each."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


@dataclass(frozen=True, slots=True)
class Windows:
    """Describes the positions of the windows, by axis."""

    size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    def count(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the number of windows along each axis. Raises ValueError if none fits."""
        first, second = (self._along(axis, shape[axis - 2]) for axis in (0, 1))
        if min(first, second) < 1:
            raise ValueError(f"a window of {self.size} does not fit into an input of {shape}")
        return first, second

    def _along(self, axis: int, length: int) -> int:
        reach = self.dilation[axis] * (self.size[axis] - 1) + 1
        return (length + 2 * self.padding[axis] - reach) // self.stride[axis] + 1

    def padded(self, x: Array, filler: float = 0) -> Array:
        """Return the input with its borders."""
        if self.padding == (0, 0):
            return x
        widths = [(0, 0)] * (x.ndim - 2) + [(width, width) for width in self.padding]
        return array_module(x).pad(x, widths, constant_values=filler)

    def view(self, x: Array, filler: float = 0) -> Array:
        """Return each window of the input: (N, channels, rows, columns, *size). Do not write to
        it."""
        count, whole = self.count(x.shape), self.padded(x, filler)
        strides = whole.strides[-2:]
        moves = [step * stride for step, stride in zip(self.stride, strides, strict=True)]
        inner = [step * stride for step, stride in zip(self.dilation, strides, strict=True)]
        return array_module(x).lib.stride_tricks.as_strided(
            whole, (*x.shape[:-2], *count, *self.size), (*whole.strides[:-2], *moves, *inner)
        )

    def gathered(self, windows: Array, shape: tuple[int, ...]) -> Array:
        """Return the gradient of an input of `shape` from that of its overlapping windows."""
        rows, columns = windows.shape[-4:-2]
        (top, left), (height, width) = self.padding, shape[-2:]
        whole = array_module(windows).zeros(
            (*shape[:-2], height + 2 * top, width + 2 * left), windows.dtype
        )
        for i, j in product(*map(range, self.size)):
            whole[self._places(0, i, rows) + self._places(1, j, columns)] += windows[..., i, j]
        return whole[..., top : top + height, left : left + width]

    def _places(self, axis: int, offset: int, count: int) -> tuple[Any, ...]:
        start, step = offset * self.dilation[axis], self.stride[axis]
        along = slice(start, start + (count - 1) * step + 1, step)
        return (..., along) if axis == 0 else (along,)
