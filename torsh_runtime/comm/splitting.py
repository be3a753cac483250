"""Arrays cut along dim 0."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any


def cut(name: str, array: object, sizes: Sequence[int] | None, count: int) -> list[object]:
    """Views of `count` parts with so many rows each; None: of equal size.

    Raises ValueError when the sizes do not add up to the array's rows, or these cannot be divided
    equally, and TypeError for what is no array.
    """
    view: Any = array if hasattr(array, "shape") else memoryview(array)  # type: ignore[arg-type]
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
