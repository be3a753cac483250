"""The text of a progress bar. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

_NARROWEST = 4
"""The smallest width of the bar itself in columns; where there is less room it is left out."""


class Look(NamedTuple):
    """The form in which a bar is written."""

    unit: str = "it"
    scale: bool | float = False
    """True if numbers have prefixes such as "k"; a number multiplies the counts."""
    divisor: float = 1000
    """The factor between two prefixes."""
    initial: float = 0
    """The count at the beginning, which took no time."""


def text_of(
    desc: str, n: float, total: float | None, seconds: float, postfix: str, look: Look, width: int
) -> str:
    """Return one line of at most `width` columns: "desc: 12%|## | 120/1000 [00:37<04:35,
    3.20it/s]".

    seconds: since the bar began.
    """
    factor = 1 if isinstance(look.scale, bool) else look.scale
    done, rate = n * factor, (n - look.initial) * factor / seconds if seconds > 0 else None
    counted = _amount(done, look)
    speed = f"{'?' if rate is None else _rate(rate, look)}{look.unit}/s"
    if rate and rate < 1 and look.scale is False:
        speed = f"{1 / rate:.2f}s/{look.unit}"
    head = f"{desc}: " if desc else ""
    more = f", {postfix}" if postfix else ""
    if not total or total < 0 or not math.isfinite(n):
        return f"{head}{counted}{look.unit} [{clock(seconds)}, {speed}{more}]"[: max(width, 1)]
    left = (total * factor - done) / rate if rate else math.nan
    tail = f"| {counted}/{_amount(total * factor, look)} [{clock(seconds)}<{clock(left)}, {speed}"
    head, tail = f"{head}{min(n / total, 1):4.0%}", f"{tail}{more}]"
    room = width - len(head) - len(tail) - 1
    if room < _NARROWEST:
        return (head + tail)[: max(width, 1)]
    return f"{head}|{'#' * int(min(n / total, 1) * room):<{room}}{tail}"


def clock(seconds: float) -> str:
    """Return a duration as "01:05" or "1:01:05", or "?" for invalid seconds."""
    if not 0 <= seconds < 1e9:
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def value_of(value: object) -> str:
    """Return a postfix's value as text, numbers with three digits."""
    if isinstance(value, int) or not isinstance(value, float):
        return str(value).strip()
    short = f"{value:.3g}"
    return short if len(short) < len(str(value)) else str(value)


def _amount(number: float, look: Look) -> str:
    if look.scale is False:
        return f"{number:g}" if isinstance(number, float) else str(number)
    return scaled(number, look.divisor)


def _rate(rate: float, look: Look) -> str:
    return f"{rate:.2f}" if look.scale is False else scaled(rate, look.divisor)


def scaled(number: float, divisor: float = 1000) -> str:
    """Return the number with a prefix and three digits: "1.20M"."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 999.5:
            digits = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
            return f"{number:.{digits}f}{prefix}"
        number /= divisor
    return f"{number:.3g}E"
