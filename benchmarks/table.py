"""Renders figures as plain text tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.samples import NO_COMMON, OURS, Cell, Row
from benchmarks.sizes import bus_factor, format_size

MISSING = "-"
Ratios = Mapping[str, Callable[[Row], float | None]]
"""Title and value of the columns after the times."""


def render(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Return the columns aligned to the right under their header."""
    lines = [list(header), *map(list, body)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    padded = ("  ".join(map(str.rjust, line, widths)).rstrip() for line in lines)
    return "\n".join(padded)


def microseconds(value: float) -> str:
    """Return at least three significant digits, and never an exponent."""
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def ratio(value: float | None) -> str:
    """Return two decimals, or a dash for None."""
    return MISSING if value is None else f"{value:.2f}"


def medians(rows: Iterable[Row], libraries: Sequence[str], ratios: Ratios) -> str:
    """Return a table of the slowest rank's medians, ratios within one state, and our bandwidth."""
    header = ["ranks", "bytes", *(f"{library} us" for library in libraries)]
    header += [*ratios, "bus GB/s", "state", "runs"]
    return render(header, [_line(row, libraries, ratios) for row in rows])


def _line(row: Row, libraries: Sequence[str], ratios: Ratios) -> list[str]:
    cells = [row.cells.get(library) for library in libraries]
    times = [microseconds(cell.median_us) if cell else MISSING for cell in cells]
    place = [row.case.place, format_size(row.nbytes)]
    found = [ratio(value(row)) for value in ratios.values()]
    return [*place, *times, *found, bus_bandwidth(row), row.state, _runs(cells)]


def step_times(
    first: str,
    rows: Iterable[Row],
    libraries: Sequence[str],
    pairs: Mapping[str, tuple[str, str]],
    digits: int,
) -> str:
    """Return a table of milliseconds by operation, whose title is `first`, and of ratios of pairs
    of libraries."""
    header = [first, *(f"{library} ms" for library in libraries), *pairs, "state", "runs"]
    body = []
    for row in rows:
        cells = [row.cells.get(library) for library in libraries]
        times = [f"{cell.median_us / 1e3:.{digits}f}" if cell else MISSING for cell in cells]
        ratios = [ratio(row.ratio(*pair)) for pair in pairs.values()]
        body.append([row.case.operation, *times, *ratios, row.state, _runs(cells)])
    return render(header, body)


def _runs(cells: Iterable[Cell | None]) -> str:
    return "/".join(str(cell.runs) if cell else "0" for cell in cells)


def bus_bandwidth(row: Row) -> str:
    """Return our bus bandwidth in GB/s (10^9 bytes)."""
    ours, operation = row.cells.get(OURS), row.case.operation
    if ours is None or row.state == NO_COMMON or operation == "barrier":
        return MISSING
    moved = bus_factor(operation, row.case.ranks) * row.nbytes
    return f"{moved / ours.median_us / 1e3:.2f}"


def means(rows: Iterable[Row], libraries: Sequence[str]) -> str:
    """Return a table of the back-to-back means, from the same runs as the medians."""
    header = ["ranks", "bytes", *(f"{library} us" for library in libraries), "state"]
    body = []
    for row in rows:
        cells = [row.cells.get(library) for library in libraries]
        times = [microseconds(cell.mean_us) if cell else MISSING for cell in cells]
        body.append([row.case.place, format_size(row.nbytes), *times, row.state])
    return render(header, body)
