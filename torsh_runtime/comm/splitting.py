"""Cuts arrays along dim 0."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any


def parts(
    array: object, counts: Sequence[int], displacements: Sequence[int] | None = None
) -> list[object]:
    """Return views of the array along dim 0, for collectives that take a list of arrays.

    Rows between the parts stay unchanged in what a collective fills.

    Args:
        array: The array to cut.
        counts: The number of rows of each part.
        displacements: The row at which each part begins; None puts them in sequence from row 0.

    Returns:
        The views, one for each count.

    Raises:
        ValueError: If a part is not within the array, or if there are not as many displacements as
            counts.
        TypeError: If `array` is no array.

    Example:
        ```python
        table = np.zeros((6, 2))
        own = np.ones((tr.get_rank() + 1, 2))  # with three ranks
        tr.all_gather(tr.parts(table, [1, 2, 3]), own)
        ```
    """
    view = _sliceable(array)
    rows = view.shape[0] if len(view.shape) else 0
    if displacements is None:
        displacements = [0, *accumulate(counts)][: len(counts)]
    bounds = [(at, at + count) for at, count in zip(displacements, counts, strict=True)]
    if any(not 0 <= begin <= end <= rows for begin, end in bounds):
        raise ValueError(
            f"counts {list(counts)} at displacements {list(displacements)} are not within the "
            f"{rows} rows of the array"
        )
    return [view[begin:end] for begin, end in bounds]


def cut(name: str, array: object, sizes: Sequence[int] | None, count: int) -> list[object]:
    """Return views of `count` parts, with as many rows as `sizes` gives, or of equal size for None.

    Raises ValueError if the sizes do not add up to the array's rows or these cannot be divided
    equally, and TypeError for what is no array. Errors call the array `name`.
    """
    view = _sliceable(array)
    rows = view.shape[0] if len(view.shape) else 0
    if sizes is None:
        if rows % count:
            raise ValueError(
                f"{name} has {rows} rows, which do not divide equally among {count} ranks: give "
                f"{name}_split_sizes"
            )
        sizes = [rows // count] * count
    if len(sizes) != count or min(sizes) < 0 or sum(sizes) != rows:
        raise ValueError(
            f"{name}_split_sizes are {list(sizes)}; they must be {count} numbers, one per rank, "
            f"that add up to the {rows} rows of {name}"
        )
    return [view[begin:end] for begin, end in pairwise(accumulate(sizes, initial=0))]


def _sliceable(array: object) -> Any:
    return array if hasattr(array, "shape") else memoryview(array)  # type: ignore[arg-type]
