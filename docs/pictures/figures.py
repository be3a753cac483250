"""Reads the tables of docs/performance.md, so that plots have the figures that the page prints."""

from __future__ import annotations

import re
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "performance.md"
Table = list[dict[str, str]]
"""Rows, each with its cells by the names of the columns; columns of one name keep the last."""
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20}


def tables(heading: str) -> list[Table]:
    """Return the tables below a heading of the page, up to the next heading.

    Raises:
        SystemExit: The page has no such heading, or no table below it.
    """
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE.read_text(), re.M | re.S)
    blocks = re.findall(r"(?:^\|.*\n)+", found[1] if found else "", re.M)
    if not blocks:
        sys.exit(f"{PAGE}: there is no table below the heading {heading!r}")
    return [_rows(block.splitlines()) for block in blocks]


def _rows(lines: list[str]) -> Table:
    names, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
    return [dict(zip(names, row, strict=True)) for row in rows]


def number(cell: str) -> float:
    """Return the number of a cell, which may have commas between its thousands."""
    return float(cell.replace(",", ""))


def time_and_ratio(cell: str) -> tuple[float, float]:
    """Return our time and a peer's of a cell such as "7.04: 2.61", our time and the ratio."""
    ours, ratio = map(number, cell.split(":"))
    return ours, ours * ratio


def size(cell: str) -> int:
    """Return the bytes of a cell such as "64Ki"."""
    digits, unit = re.fullmatch(r"(\d+)(\D*)", cell).groups()  # type: ignore[union-attr]
    return int(digits) * _UNITS[unit]
