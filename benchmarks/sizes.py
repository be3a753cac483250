"""Parses and prints sizes in bytes, and splits the default grid of sizes into launches."""

from __future__ import annotations

import re

_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_KI, _MI = 2**10, 2**20

DEFAULT_GRID = (8, 64, 512, 4 * _KI, 16 * _KI, 64 * _KI, 256 * _KI, _MI, 4 * _MI, 16 * _MI,
                64 * _MI, 256 * _MI)  # fmt: skip
QUICK_GRID = (8, 64 * _KI, 4 * _MI)


def parse_size(text: str) -> int:
    """Return the bytes of "8", "64Ki", "1Mi" or "1Gi" (powers of 1024; "K" and "KiB" mean "Ki").

    Raises ValueError for anything else, and for sizes that are not whole float32 elements.
    """
    match = re.fullmatch(r"(\d+)\s*([KMG]?)i?B?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write bytes with Ki, Mi or Gi, such as 64Ki")
    count, unit = match.groups()
    nbytes = int(count) * _UNITS[f"{unit}i" if unit else ""]
    if nbytes < 4 or nbytes % 4:
        raise ValueError(f"{text!r} is not a positive multiple of 4 bytes (float32)")
    return nbytes


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes of a list such as "8,64Ki,1Mi", ascending and without repetitions."""
    return tuple(sorted({parse_size(part) for part in text.split(",")}))


def format_size(nbytes: int) -> str:
    """Return the shortest exact spelling: 8, 64Ki, 1Mi."""
    for unit in ("Gi", "Mi", "Ki"):
        if nbytes and nbytes % _UNITS[unit] == 0:
            return f"{nbytes // _UNITS[unit]}{unit}"
    return str(nbytes)


def groups(sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Split sizes so that one launch stays short: the small, the middle, and each large alone."""
    small = tuple(size for size in sizes if size <= 64 * _KI)
    middle = tuple(size for size in sizes if 64 * _KI < size <= 16 * _MI)
    large = [(size,) for size in sizes if size > 16 * _MI]
    return [group for group in (small, middle, *large) if group]


def bus_factor(operation: str, ranks: int) -> float:
    """Return the bytes that cross the bus per byte of the buffer, as NCCL's tests define it."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0
