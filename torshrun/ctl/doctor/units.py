"""Bytes and rates, for a person."""

from __future__ import annotations

GIB = 1 << 30


def size(number: float) -> str:
    """Of so many bytes: "23.5 GiB"."""
    return _scaled(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def rate(bytes_a_second: float) -> str:
    """As networks are sold, in bits: "9.4 Gbit/s"."""
    return _scaled(8 * bytes_a_second, 1000, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"))


def _scaled(number: float, step: int, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if number < step:
            return f"{number:.3g} {unit}"
        number /= step
    return f"{number:.3g} {units[-1]}"
