"""Draws schedules of pipelines, from the tables that the runtime itself runs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from drawing import Picture

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = "torsh_runtime.parallel.pipeline"
if PIPELINE not in sys.modules:  # its own __init__ needs the compiled core
    sys.path.insert(0, str(ROOT))
    package = ModuleType(PIPELINE)
    package.__path__ = [str(ROOT.joinpath(*PIPELINE.split(".")))]
    sys.modules[PIPELINE] = package

from torsh_runtime.parallel.pipeline import builders  # noqa: E402
from torsh_runtime.parallel.pipeline.simulation import Simulation, simulate  # noqa: E402
from torsh_runtime.parallel.pipeline.table import Kind  # noqa: E402

RANKS, MICROBATCHES = 4, 6
STYLES = {Kind.FORWARD: "blue", Kind.BACKWARD: "orange", Kind.INPUT: "orange"}


def schedules() -> Picture:
    """Draw three schedules of four ranks over time."""
    tables = (
        ("gpipe", builders.gpipe(builders.loop(RANKS, RANKS), MICROBATCHES)),
        ("1f1b", builders.one_f_one_b(RANKS, MICROBATCHES)),
        ("zb-h1", builders.zb_h1(RANKS, MICROBATCHES)),
    )
    picture = Picture(
        "schedules",
        "Pipeline schedules over time",
        "With gpipe all forward passes come first. With 1f1b forward and backward passes "
        "alternate, so ranks hold fewer microbatches. With zb-h1 the weights' gradients fill "
        "the time in which ranks would wait.",
    )
    legend = (
        (20, "blue", "forward pass"),
        (150, "orange", "backward pass"),
        (290, "plain", "its part for weights, if separate"),
    )
    for x, style, text in legend:
        picture.box((x, 20, 16, 16), style=style)
        picture.label(x + 23, 33, text, "small", "start")
    y = 72.0
    for name, table in tables:
        _draw(picture, y, name, simulate(table))
        y += 152
    return picture


def _draw(picture: Picture, y: float, name: str, found: Simulation) -> None:
    """Draw a schedule's name, figures and lanes."""
    picture.label(20, y, name, "bold", "start")
    picture.label(
        580,
        y,
        f"{found.makespan:g} units of time, {found.bubble:.0%} idle, "
        f"up to {max(found.peaks):g} microbatches held",
        "small muted",
        "end",
    )
    scale, left = 18.6, 76.0
    for rank, row in enumerate(found.spans):
        spans = [
            (
                left + scale * span.start,
                left + scale * span.end,
                str((span.step.microbatch or 0) + 1),
                STYLES.get(span.step.kind, "plain"),
            )
            for span in row
        ]
        picture.lane(y + 12 + 28 * rank, f"rank {rank}", spans, 24)
