"""Shortens long tracebacks to the lines that say most. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from torshrun.failure.tracebacks import HEADER, Words

MOST_CHAINED = 6
"""Exceptions of a chain that are shown: the first one and the last ones."""
_FRAME = re.compile(r'[ |]*File "')
_INSTALLED = re.compile(
    r'[ |]*File "(?:[^"]*/(?:lib\d*/python\d\.\d+|site-packages|dist-packages)/|<frozen )'
)
"""Matches frames of Python itself and of installed libraries."""


def excerpt(words: Words, most: int) -> list[str]:
    """Return about `most` lines, with the innermost calls and the program's own of each exception.

    The program's own calls have up to half of an exception's lines.
    """
    lines = list(words.lines)
    if len(lines) <= most:
        return lines
    if words.innermost_first:
        return [*lines[: most - 1], _left_out(len(lines) - most + 1)]
    edges = (0, *words.ends[:-1], len(lines))
    parts = [lines[start:end] for start, end in pairwise(edges)]
    if len(parts) > MOST_CHAINED:  # the first one is where it began
        parts = [parts[0], *parts[1 - MOST_CHAINED :]]
    shares = _shares([*map(len, parts)], most)
    return [line for part in map(_shorten, parts, shares) for line in part]


def _shares(sizes: Sequence[int], most: int) -> list[int]:
    """Return how many lines each part may have: none too few while others have more."""
    left, shares = most, [0] * len(sizes)
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    for done, number in enumerate(order):
        shares[number] = min(sizes[number], left // (len(sizes) - done))
        left -= shares[number]
    return shares


def _shorten(lines: Sequence[str], most: int) -> list[str]:
    """Return a traceback's head, after the lines that chain it to an earlier one, and its rest."""
    if len(lines) <= most:
        return [*lines]
    head = next((n + 1 for n, line in enumerate(lines) if line.endswith(HEADER)), 1)
    room = most - head
    own = _own_calls(lines[: len(lines) - room + room // 2], head, room // 2)
    start = len(lines) - max(room - sum(stop - first + 1 for first, stop in own) - 1, 1)
    start = next((n for n in range(start, len(lines)) if _FRAME.match(lines[n])), start)
    before = [(first, min(stop, start)) for first, stop in own if first < start]
    shown = [*lines[:head]]
    for (_, end), (first, stop) in pairwise([(0, head), *before, (start, len(lines))]):
        if first > end:
            shown.append(_left_out(first - end))
        shown += lines[first:stop]
    return shown


def _own_calls(lines: Sequence[str], head: int, room: int) -> list[tuple[int, int]]:
    """Return where the innermost of the program's own calls lie that fit into so many lines, with
    one for what is left out after each row of them.

    There are none if no call is of a library: no call is told from the others then.
    """
    starts = [n for n in range(head, len(lines)) if _FRAME.match(lines[n])]
    if not any(_INSTALLED.match(lines[start]) for start in starts):
        return []
    chosen: list[tuple[int, int]] = []
    for start, stop in reversed([*pairwise([*starts, len(lines)])]):
        if _INSTALLED.match(lines[start]):
            continue
        follows = bool(chosen) and chosen[0][0] == stop
        room -= stop - start + (not follows)
        if room < 0:
            break
        end = chosen.pop(0)[1] if follows else stop
        chosen.insert(0, (start, end))
    return chosen


def _left_out(count: int) -> str:
    return f"  … {count} lines left out …"
