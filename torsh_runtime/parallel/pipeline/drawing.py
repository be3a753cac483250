"""Draws tables, for a terminal or as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torsh_runtime.errors import BackendUnavailable
from torsh_runtime.parallel.pipeline.simulation import Simulation, Span
from torsh_runtime.parallel.pipeline.table import Kind

_COLOURS = {
    Kind.FORWARD: "#4c78a8",
    Kind.BACKWARD: "#f58518",
    Kind.INPUT: "#f58518",
    Kind.WEIGHT: "#eeca3b",
}
_OTHERS = "#9d9d9d"


def summary(found: Simulation) -> str:
    """Return its figures in one line: makespan, bubble and what is alive by rank."""
    peaks = ", ".join(f"{peak:g}" for peak in found.peaks)
    alive = f", alive by rank {peaks}" if peaks else ""
    return f"makespan {found.makespan:.4g}, bubble {100 * found.bubble:.1f} %{alive}"


def as_text(found: Simulation, width: int) -> str:
    """Draw a line for each rank, whose `width` columns are equal parts of the time.

    Steps are drawn as bars, and dots where a rank is idle.
    """
    return "\n".join(f"{rank:>3} |{_line(row, found, width)}|" for rank, row in _rows(found))


def save_png(runs: Sequence[tuple[str, Simulation]], path: Path) -> None:
    """Write the runs, with their titles, one above the other. BackendUnavailable without
    matplotlib.
    """
    if find_spec("matplotlib") is None:
        raise BackendUnavailable(
            "a picture as PNG", "Install matplotlib (pip install matplotlib), or leave --png out."
        )
    from matplotlib.figure import Figure

    ranks = sum(len(found.spans) for _, found in runs)
    figure = Figure(figsize=(14, 1 + 0.5 * ranks + 0.7 * len(runs)), layout="constrained")
    panels = figure.subplots(len(runs), squeeze=False)[:, 0]
    for panel, (title, found) in zip(panels, runs, strict=True):
        panel.set_title(f"{title}: {summary(found)}", loc="left")
        panel.set_ylabel("rank")
        panel.set_yticks(range(len(found.spans)))
        panel.invert_yaxis()
        for rank, row in _rows(found):
            _draw(panel, rank, row, found.makespan)
    figure.savefig(path, format="png")


def _draw(panel: Any, rank: int, row: Sequence[Span], makespan: float) -> None:
    for step, start, end in ((span.step, span.start, span.end) for span in row):
        colour = _COLOURS.get(step.kind, _OTHERS)
        panel.barh(rank, end - start, left=start, color=colour, edgecolor="white")
        if end - start > makespan / 80:
            label = str(step) if len(str(step)) < 5 else step.kind.value[0]
            panel.text((start + end) / 2, rank, label, ha="center", va="center", fontsize=7)


def _rows(found: Simulation) -> Sequence[tuple[int, Sequence[Span]]]:
    return [*enumerate(found.spans)]


def _line(row: Sequence[Span], found: Simulation, width: int) -> str:
    """Draw steps as bars of their lengths, which begin with their names as far as these fit."""
    cells = ["."] * width
    scale = width / found.makespan if found.makespan else 0.0
    is_several = found.table.num_stages > len(found.spans)
    for span in row:
        first, last = round(span.start * scale), round(span.end * scale)
        if last > first:
            text = (
                str(span.step) if is_several else str(span.step).removeprefix(str(span.step.stage))
            )
            cells[first:last] = [*text.ljust(last - first, "-")[: last - first]]
    return "".join(cells)
