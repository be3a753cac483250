"""Plain text tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.samples import MEMCPY, NO_COMMON, OURS, Row
from benchmarks.sizes import bus_factor, format_size

MISSING = "-"


def render(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Columns aligned to the right under their header."""
    lines = [list(header), *map(list, body)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    padded = ("  ".join(map(str.rjust, line, widths)).rstrip() for line in lines)
    return "\n".join(padded)


def microseconds(value: float) -> str:
    """Three significant digits at least, and never an exponent."""
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def ratio(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def collectives(rows: Iterable[Row], libraries: Sequence[str], operation: str) -> str:
    """Times of the worst rank's median per library, and the ratios from runs of one state."""
    header = ["ranks", "bytes", *(f"{library} us" for library in libraries), "memcpy us"]
    header += ["best MPI/ours", "gloo/ours", "ours/memcpy", "bus GB/s", "state", "runs"]
    return render(header, [_line(row, libraries, operation) for row in rows])


def _line(row: Row, libraries: Sequence[str], operation: str) -> list[str]:
    columns = [*libraries, MEMCPY]
    cells = [row.cells.get(library) for library in columns]
    times = [microseconds(cell.median_us) if cell else MISSING for cell in cells]
    runs = "/".join(str(cell.runs) if cell else "0" for cell in cells)
    ratios = map(ratio, (row.best_mpi(), row.times_faster("gloo"), row.in_memcpys()))
    place = [str(row.ranks), format_size(row.nbytes)]
    return [*place, *times, *ratios, bus_bandwidth(row, operation), row.state, runs]


def bus_bandwidth(row: Row, operation: str) -> str:
    """Our bus bandwidth in GB/s (10^9 bytes)."""
    ours = row.cells.get(OURS)
    if ours is None or row.state == NO_COMMON or operation == "barrier":
        return MISSING
    moved = bus_factor(operation, row.ranks) * row.nbytes
    return f"{moved / ours.median_us / 1e3:.2f}"


def means(rows: Iterable[Row], libraries: Sequence[str]) -> str:
    """The back-to-back means beside the medians, from the same runs."""
    header = ["ranks", "bytes", *(f"{library} us" for library in libraries), "state"]
    body = []
    for row in rows:
        cells = [row.cells.get(library) for library in libraries]
        times = [microseconds(cell.mean_us) if cell else MISSING for cell in cells]
        body.append([str(row.ranks), format_size(row.nbytes), *times, row.state])
    return render(header, body)
