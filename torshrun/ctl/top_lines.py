"""Renders torshctl top as lines of text, for a terminal of any size. Pure."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from torsh_runtime.monitoring.flight import in_words
from torshrun.ctl.top_view import RankView, View, done_of
from torshrun.text import printable, ranges

SORTS: Mapping[str, Callable[[RankView], float]] = {
    "rank": lambda each: each.rank,
    "waiting": lambda each: -each.spent.share(each.spent.waited),
    "own work": lambda each: -each.spent.share(each.spent.own),
    "bytes": lambda each: -each.spent.share(each.spent.nbytes),
    "since": lambda each: -(each.since or 0.0),
}
"""The orders in which ranks can be sorted."""
HUNG_SECONDS = 1.0
"""Seconds after which an operation that ranks wait in is named above the ranks."""
_BAR = 10
_PARTS = (("#", "32"), ("-", "36"), (".", "33"))
"""The characters and colours of the bar for own work, moving bytes and waiting."""
_HEAD = f"{'STEP':>7} {'OWN# MOVE- WAIT.':16} {'B/S':>5} {'CPU%':>5} {'MEM':>5} {'SINCE':>6}  DOES"

Line = Sequence[tuple[str, str]]
"""Pieces of text, each with the parameters of its escape sequence for colour, or ""."""


class Shape(NamedTuple):
    """Holds the size and form of a picture."""

    columns: int
    rows: int
    color: bool = False
    sort: str = "rank"
    keys: str = ""
    """The last line. Empty is none."""
    note: str = ""
    """Text before the name of the job, such as "paused"."""


def lines(shown: View, shape: Shape) -> list[str]:
    """Return the picture: at most `rows` lines of at most `columns` columns."""
    made = [*_head(shown, shape)]
    last: list[Line] = [[(shape.keys, "2")]] if shape.keys else []
    room = max(shape.rows - len(made) - len(last), 0)
    made += _table(shown, room, shape.sort)
    made = made[: max(shape.rows - len(last), 0)]
    if last and shape.rows:
        made += [[("", "")]] * (shape.rows - len(made) - 1) + last
    return [_fitted(line, shape.columns, color=shape.color) for line in made]


def _head(shown: View, shape: Shape) -> Iterator[Line]:
    moment = f"{_span(-shown.at)} before {'the end' if shown.has_ended else 'now'}"
    told = [moment if shown.at < 0 else "ended" if shown.has_ended else "", shape.note]
    yield [("".join(f"{each}  " for each in told if each), "33"), (shown.name, "1")]
    yield [(", ".join([shown.place, *_progress(shown)]), "")]
    yield [(_shares(shown), "")]
    if shown.silent:
        more = f" (and {len(shown.silent) - 1} more)" if len(shown.silent) > 1 else ""
        yield [(f"{shown.silent[0]}{more}", "31")]
    suspicion = shown.suspicion
    if suspicion is not None and shown.at - suspicion.since >= HUNG_SECONDS:
        yield [(printable(in_words(suspicion, shown.at)), "31")]
    elif shape.keys:  # or the ranks would move
        yield [("", "")]


def _progress(shown: View) -> Iterator[str]:
    if shown.step is not None:
        yield f"step {shown.step:,}" + (f" of {shown.total:,}" if shown.total else "")
    if shown.rate is not None:
        yield f"{shown.rate:.3g} steps/s"
    if shown.samples is not None:
        yield f"{shown.samples:.4g} samples/s"
    yield from (f"{name} {value:.4g}" for name, value in shown.scalars.items())


def _shares(shown: View) -> str:
    known = [each.spent for each in shown.ranks if each.spent.covered > 0]
    if not known:
        return f"no operation is recorded of the last {_span(shown.seconds)}"
    own, moved, waited = (
        _percent(fmean(each.share(seconds) for each, seconds in zip(known, kind, strict=True)))
        for kind in zip(*((each.own, each.moved, each.waited) for each in known), strict=True)
    )
    most = next(((rank, part) for rank, part in shown.awaited.items() if part >= 0.005), None)
    whom = f" ({_percent(most[1])} for rank {most[0]})" if most else ""
    return (
        f"last {_span(shown.seconds)}: own work {own}, moving bytes {moved}, waiting {waited}{whom}"
    )


# ---- the ranks


def _table(shown: View, room: int, sort: str) -> list[Line]:
    ordered = sorted(shown.ranks, key=lambda each: (SORTS[sort](each), each.rank))
    rows = [[each] for each in ordered]
    more: list[Line] = []
    if len(rows) > room - 1:
        rows = _alike(ordered)
        if len(rows) > room - 1:
            hidden = rows[max(room - 2, 0) :]
            rows = rows[: max(room - 2, 0)]
            count = sum(map(len, hidden))
            more = [[(f"… {count} more ranks, in {len(hidden)} lines", "2")]]
    labels = [",".join(ranges([each.rank for each in row])) for row in rows]
    width = min(max((4, *map(len, labels))), 12)
    head: list[Line] = [[(f"{'RANK':>{width}} {_HEAD}", "7")]] if rows else []
    return [
        *head,
        *(_row(row, label, width) for row, label in zip(rows, labels, strict=True)),
        *more,
    ]


def _alike(ordered: Sequence[RankView]) -> list[list[RankView]]:
    """Group ranks that do the same, in the order of the first of each."""
    found: dict[object, list[RankView]] = {}
    for each in ordered:
        found.setdefault(each.likeness, []).append(each)
    return list(found.values())


def _row(row: Sequence[RankView], label: str, width: int) -> Line:
    """Return the row of one rank or of several.

    Several show averages, their smallest step, and what the one that waits longest does.
    """
    label = label if len(label) <= width else f"{label[: width - 1]}…"
    steps = [number for each in row if (number := done_of(each.pace)) is not None]
    longest = max(row, key=lambda each: each.since or 0.0)
    since = "" if longest.since is None else _span(longest.since)
    count = f"{len(row)} ranks: " if len(row) > 1 else ""
    step = str(min(steps)) if steps else "-"
    cpu = _average(each.usage.cpu for each in row)
    memory = _average(each.usage.memory for each in row)
    known = [each.spent for each in row if each.spent.covered > 0]
    rate = _average(each.nbytes / each.covered for each in known)
    figures = (
        f" {'-' if rate is None else _short(rate):>5}"
        f" {'-' if cpu is None else _percent(cpu, ''):>5}"
        f" {'-' if memory is None else _short(memory):>5}"
        f" {since:>6}  "
    )
    does = (f"{count}{longest.does}", "31" if longest.awaited else "")
    return [(f"{label:>{width}} {step:>7} ", ""), *_bar(row), (figures, ""), does]


def _bar(row: Sequence[RankView]) -> Iterator[tuple[str, str]]:
    """Yield the bar of shares, and the percentage of time spent waiting."""
    known = [each.spent for each in row if each.spent.covered > 0]
    if not known:
        yield f"{'':{_BAR}} {'-':>5}", ""
        return
    own = fmean(each.share(each.own) for each in known)
    waited = fmean(each.share(each.waited) for each in known)
    first, second = round(own * _BAR), round((1 - waited) * _BAR)
    for (mark, style), count in zip(_PARTS, (first, second - first, _BAR - second), strict=True):
        yield mark * count, style
    yield f" {_percent(waited):>5}", ""


# ---- numbers, and cutting to fit


def _average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _percent(part: float, sign: str = " %") -> str:
    return f"{100 * part:.0f}{sign}" if math.isfinite(part) else "?"


def _short(number: float) -> str:
    """Return a number of bytes in at most five columns, such as "1.2G"."""
    if not math.isfinite(number):
        return "?"
    for unit in ("", "K", "M", "G", "T"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1024
    return f"{number:.3g}P"


def _span(seconds: float) -> str:
    """Return a duration such as "12 ms", "3.2 s" or "5 min"."""
    if not math.isfinite(seconds):
        return "?"
    for limit, factor, unit in ((0.9995, 1000, "ms"), (99.95, 1, "s"), (5970, 1 / 60, "min")):
        if seconds < limit:
            return f"{seconds * factor:.{int(unit == 's' and seconds < 9.95)}f} {unit}"
    return f"{seconds / 3600:.3g} h"


def _fitted(line: Line, columns: int, *, color: bool) -> str:
    """Return the line, cut at the terminal's width."""
    left, pieces = columns, []
    for text, style in line:
        piece = _cut(text, left)
        left -= sum(map(_width, piece))
        if piece:
            pieces.append(f"\x1b[{style}m{piece}\x1b[0m" if style and color else piece)
    return "".join(pieces)


def _cut(text: str, columns: int) -> str:
    used = 0
    for place, character in enumerate(text):
        used += _width(character)
        if used > columns:
            whole = text[:place]
            while whole and sum(map(_width, whole)) > columns - 1:
                whole = whole[:-1]
            return f"{whole}…" if columns > 0 else ""
    return text


def _width(character: str) -> int:
    """Return the number of columns that a terminal uses for the character."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
