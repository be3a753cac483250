"""Compares numbers that ranks write, as losses: whose was invalid first, and whether they grew.

Everything here is pure.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

MOST_LINES = 2000
"""Lines, the last ones, that are looked at."""
LINE_CHARS = 80
"""Characters of a line that are kept."""
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+|nan|inf|infinity)(?![\w.]*\w)",
    re.IGNORECASE,
)
_WORD = re.compile(r"[a-z]", re.IGNORECASE)
_GROWTH = 10.0
_LEAST = 3
"""The number of consecutive lines that show that numbers grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Holds what a rank wrote, in lines of the same form, about the numbers that it had."""

    form: str
    """Equal for lines that differ in their numbers only."""
    finite: int = 0
    """The number of these lines before the first one with NaN or an infinity."""
    line: str = ""
    """The first line with NaN or an infinity; "" if there is none."""
    grows: bool = False
    """True if a number had grown many times over from line to line before."""


def numbers_in(lines: Sequence[str]) -> Numbers | None:
    """Return what these lines of a rank's output tell of its numbers; None is nothing."""
    told = [line for line in lines[-MOST_LINES:] if _NUMBER.search(line) and _WORD.search(line)]
    forms = [_NUMBER.sub("#", line) for line in told]
    if not told:
        return None
    values = [[*map(float, _NUMBER.findall(line))] for line in told]
    first = next((n for n, found in enumerate(values) if not _are_finite(found)), len(told))
    form = forms[first] if first < len(told) else Counter(forms).most_common(1)[0][0]
    before = [n for n in range(first) if forms[n] == form]
    return Numbers(
        form=hashlib.blake2b(form.encode(errors="replace"), digest_size=4).hexdigest(),
        finite=len(before),
        line=told[first][:LINE_CHARS] if first < len(told) else "",
        grows=_grows([_NUMBER.findall(told[n]) for n in before]),
    )


def _are_finite(values: Sequence[float]) -> bool:
    return all(map(math.isfinite, values))


def _grows(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a column of numbers with fractions has grown many times over at its end."""
    last = rows[-_LEAST:]
    if len(last) < _LEAST or len({*map(len, last)}) > 1:
        return False
    columns = [
        [*map(abs, map(float, column))]
        for column in zip(*last, strict=True)
        if "." in "".join(column)
    ]
    return any(
        all(after > _GROWTH * before > 0 for before, after in pairwise(column))
        for column in columns
    )


def first_of(numbers: Mapping[int, Numbers | None]) -> int | None:
    """Return the rank that had NaN or an infinity where all others still had finite numbers.

    None if they write nothing of the same form, or if several had it.
    """
    known = {rank: found for rank, found in numbers.items() if found}
    having = [rank for rank, found in known.items() if found.line]
    if not having or len(known) < max(len(numbers), 2):
        return None
    first = min(having, key=lambda rank: known[rank].finite)
    others = [found for rank, found in known.items() if rank != first]
    is_alone = all(
        each.form == known[first].form and each.finite > known[first].finite for each in others
    )
    return first if is_alone else None
