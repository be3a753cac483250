"""Provides known contents to check results: whole numbers whose sums are exact.

Arrays are in the dtype's storage: numpy's own, and for bfloat16, which numpy lacks, its bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
STORAGE: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
}
_EXACT = {"float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8}
"""Largest number up to which every whole number is exact, by dtype."""
_PERIODS = (251, 127, 53, 23, 7, 5, 3, 2)
"""Primes, so that a misplaced piece does not look right."""
_BLOCK = 1 << 20
MOST_RANKS = {"float32": 64, "float16": 16, "bfloat16": 16}
"""Largest number of ranks for which sums of scaled patterns are exact, by dtype."""


class Pattern:
    """Sets element i to i modulo a prime, times a scale of at most `largest_scale`."""

    def __init__(self, dtype: str, largest_scale: int) -> None:
        self._dtype = dtype
        bound = _EXACT[dtype] // largest_scale + 1
        self._period = next(period for period in _PERIODS if period <= bound)

    def fill(self, array: Array, start: int, scale: int) -> None:
        """Write the pattern, starting at its element `start`."""
        for first in range(0, array.size, _BLOCK):
            piece = array[first : first + _BLOCK]
            piece[:] = self._values(start + first, piece.size, scale)

    def verify(self, array: Array, start: int, scale: int, where: str) -> None:
        """End this rank with an error unless the array holds what fill() would write."""
        for first in range(0, array.size, _BLOCK):
            piece = array[first : first + _BLOCK]
            wrong = np.flatnonzero(piece != self._values(start + first, piece.size, scale))
            if wrong.size:
                at = first + int(wrong[0])
                raise SystemExit(f"WRONG RESULT: {where}, {array.nbytes} bytes, element {at}")

    def _values(self, start: int, count: int, scale: int) -> Array:
        values = np.arange(start, start + count) % self._period * scale
        if self._dtype == "bfloat16":  # the upper half of the float32, whose lower half is 0 here
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(STORAGE[self._dtype])
