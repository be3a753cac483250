"""Computes which rows along the first dimension of several tensors each rank has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate


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
