"""Text for a terminal: what others wrote without what would command the terminal; ranges, sizes and
rates.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_ESCAPES = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor, erasing
    r"|(?:\x1b[PX\]^_]|[\x90\x98\x9d-\x9f])"  # OSC, DCS, …, and ...
    r"[^\x07\x1b\x90\x98\x9c-\x9f\n]*(?:\x07|\x1b\\|\x9c)"  # ... no other one before its end
    r"|\x1b[ -/]*[0-OQ-WYZ`-~]"  # two bytes or three: character sets, reset
)
"""Escape sequences of ECMA-48, with its 8-bit forms. A string without an end remains, as text."""
_MARK = "\N{REPLACEMENT CHARACTER}"
_MOST_RANGES = 8


def printable(text: str) -> str:
    """Return the text on one line, without escape sequences and with marks for what cannot be
    shown.
    """
    return text if text.isprintable() else _marked(re.sub(_ESCAPES, "", text))


def printable_lines(text: str) -> list[str]:
    """Return the lines that a terminal would show, each printable; none if it would show none."""
    plain = re.sub(_ESCAPES, "", text).rstrip()
    lines = plain.split("\n") if plain else []
    return [_marked(line.rstrip("\r").rpartition("\r")[2].expandtabs()) for line in lines]


def _marked(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else _MARK for c in text)


def ranges(numbers: Collection[int]) -> list[str]:
    """Return each run of neighbours: "0-2" and "5" for 5, 0, 1 and 2."""
    starts = sorted(n for n in numbers if n - 1 not in numbers)
    ends = sorted(n for n in numbers if n + 1 not in numbers)
    pairs = zip(starts, ends, strict=True)
    return [f"{start}-{end}" if end > start else f"{start}" for start, end in pairs]


def parse_ranges(text: str) -> set[int]:
    """Return the numbers of such runs, separated by commas; none for "".

    Raise ValueError if the text is malformed.
    """
    numbers: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*([0-9]{1,6})\s*(?:-\s*([0-9]{1,6})\s*)?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(text)
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return numbers


def format_ranks(ranks: Collection[int]) -> str:
    """Return "rank 3" or "ranks 0-2, 7".

    Of very many runs, name the first ones and the number of ranks.
    """
    found = ranges(frozenset(ranks))
    shown = ", ".join(found[:_MOST_RANGES])
    more = f", … ({len(ranks)} in all)" if len(found) > _MOST_RANGES else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"


def size(num_bytes: float) -> str:
    """Return a size as people write it: 61 MiB."""
    return _scaled(num_bytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def rate(bytes_a_second: float) -> str:
    """Return a rate in bits, as networks are sold: 9.4 Gbit/s."""
    return _scaled(8 * bytes_a_second, 1000, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"))


def _scaled(value: float, step: int, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if value < step:
            return f"{value:.3g} {unit}"
        value /= step
    return f"{value:.4g} {units[-1]}"
