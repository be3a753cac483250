"""Computes which rows along the first dimension of several tensors each rank has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

_ALIGNED = 8
"""Elements that tensors of an even layout begin at a multiple of: kernels read 16 bytes at once."""

_LEAST_PADDING = 4096
"""Elements of padding in each part that no tensors are too small for."""


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """Tells where tensors begin in a flat one, and where each rank's part of that ends.

    starts: the first element of each tensor.
    cuts: one element more than there are parts, from 0 to the size of the flat tensor.
    is_even: all parts are equally large, because of padding between tensors.
    """

    starts: tuple[int, ...]
    cuts: tuple[int, ...]
    is_even: bool = False


def end_to_end(sizes: Sequence[int], cuts: Sequence[int]) -> FlatLayout:
    """Return the layout of tensors without padding between them."""
    return FlatLayout((0, *accumulate(sizes))[:-1], tuple(cuts))


def even_layout(shapes: Sequence[tuple[int, ...]], parts: int) -> FlatLayout | None:
    """Return a layout of equally large parts that end between rows, or None.

    Tensors stay in one piece: padding before a tensor moves its rows to where parts end. A tensor
    that is larger than a part needs parts of whole rows. None means that padding would be more than
    an eighth of the tensors, and more than 4,096 elements in each part.

    Args:
        shapes: The tensors' shapes, in order.
        parts: The number of parts.

    Returns:
        The layout.

    Example:
        ```python
        layout = even_layout([(512, 1024), (1024,)], 2)
        layout.cuts  # (0, 263168, 526336): 257 rows, and 255 with the vector
        ```
    """
    return _even_layout(shapes, parts, _ALIGNED) or _even_layout(shapes, parts, 1)


def even_owners(sizes: Sequence[int], owners: Sequence[int], parts: int) -> FlatLayout | None:
    """Return a layout of equally large parts, of which each has whole tensors, or None; see
    even_layout() and owner_cuts()."""
    ends, starts = [0] * parts, []
    for size, owner in zip(sizes, owners, strict=True):
        starts.append(ends[owner])
        ends[owner] += _up(size, _ALIGNED)
    largest = max(ends)
    if largest * parts - sum(sizes) > _most_padding(sum(sizes), parts):
        return None
    moved = [owner * largest + start for owner, start in zip(owners, starts, strict=True)]
    return FlatLayout(tuple(moved), tuple(largest * part for part in range(parts + 1)), True)


def _most_padding(total: int, parts: int) -> int:
    return max(total // 8, parts * _LEAST_PADDING)


def _even_layout(shapes: Sequence[tuple[int, ...]], parts: int, aligned: int) -> FlatLayout | None:
    total = sum(map(math.prod, shapes))
    most, size = _most_padding(total, parts), max(-(-total // parts), 1)
    while True:
        over = [row_size(shape) for shape in shapes if math.prod(shape) > size]
        step = math.lcm(aligned, *over)
        size = _up(size, step)
        if size * parts - total > most:
            return None
        starts, end = _placed(shapes, size, aligned)
        if end <= size * parts:
            return FlatLayout(starts, tuple(size * part for part in range(parts + 1)), True)
        size += max(step, -(-(end - size * parts) // parts))


def _placed(
    shapes: Sequence[tuple[int, ...]], size: int, aligned: int
) -> tuple[tuple[int, ...], int]:
    """Return where tensors begin if parts of `size` elements end between their rows, and where the
    last one ends."""
    starts, end = [], 0
    for shape in shapes:
        start = _up(end, aligned)
        cut = (start // size + 1) * size
        if start + math.prod(shape) > cut:
            rows = (cut - end) // row_size(shape)
            start = cut - rows * row_size(shape)
        starts.append(start)
        end = start + math.prod(shape)
    return tuple(starts), end


def _up(size: int, step: int) -> int:
    """Return the next multiple of `step`."""
    return -(-size // step) * step


def row_cuts(shapes: Sequence[tuple[int, ...]], parts: int) -> tuple[int, ...]:
    """Return where to cut the elements of tensors, which are laid end to end, between rows.

    A part that would end within a row ends at the nearer end of that row, so parts differ by one
    row at most. A tensor without dimensions counts as one row.

    Args:
        shapes: The tensors' shapes, in order.
        parts: The number of parts.

    Returns:
        parts + 1 numbers of elements, from 0 to that of all tensors.

    Example:
        ```python
        row_cuts([(4, 3), (4,)], 2)  # (0, 9, 16): three rows, and one with the second tensor
        ```
    """
    sizes = [math.prod(shape) for shape in shapes]
    starts = [0, *accumulate(sizes)]
    cuts, number = [0], 0
    for part in range(1, parts):
        wanted = starts[-1] * part // parts
        while number + 1 < len(sizes) and starts[number + 1] <= wanted:
            number += 1
        row = row_size(shapes[number])
        rows = (2 * (wanted - starts[number]) + row) // (2 * row) if row else 0
        cuts.append(min(starts[number] + rows * row, starts[number + 1]))
    return (*cuts, starts[-1])


def row_size(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a tensor's row."""
    return math.prod(shape[1:])


def owner_cuts(sizes: Sequence[int], owners: Sequence[int], parts: int) -> tuple[int, ...]:
    """Return where to cut the elements of tensors, of which each belongs to one rank as a whole.

    Args:
        sizes: The tensors' numbers of elements, in the order of their owners.
        owners: The rank that has each tensor, in ascending order.
        parts: The number of ranks.

    Returns:
        parts + 1 numbers of elements, from 0 to that of all tensors.
    """
    of_rank = [0] * parts
    for size, owner in zip(sizes, owners, strict=True):
        of_rank[owner] += size
    return (0, *accumulate(of_rank))
