"""Draws plots of the figures in docs/performance.md, with text that phones can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from drawing import Picture
from figures import number, size, tables, time_and_ratio

LEFT, RIGHT = 104.0, 572.0
"""Ends of the horizontal axes."""
HEIGHT = 210.0
"""Height of a panel's area."""


class Point(NamedTuple):
    """The times of an operation of one size, in µs."""

    size: str
    """As the page has it, such as "64Ki"."""
    ours: float
    theirs: float


def all_reduce() -> Picture:
    """Draw the time of an all_reduce within a node by size."""
    picture = Picture(
        "plot-all-reduce",
        "all_reduce within a node",
        "Time by size with 2 and with 8 ranks on 2 processors: ours, and that of the quickest of "
        "Gloo, MPICH and Open MPI, on logarithmic scales. The table has the same figures.",
    )
    found = tables("Collectives within a node")
    panels = [
        (
            f"{ranks} ranks",
            [Point(row["bytes"], *time_and_ratio(row["all_reduce"])) for row in table],
        )
        for ranks, table in ((2, found[0]), (8, found[2]))
    ]
    _curves(picture, "quickest peer", panels)
    return picture


def network() -> Picture:
    """Draw the time of an all_reduce between nodes by size."""
    picture = Picture(
        "plot-network",
        "all_reduce between two nodes",
        "Time by size with 1 and with 2 ranks on each of two nodes, which are network namespaces: "
        "ours and Gloo's, on logarithmic scales. The table has the same figures.",
    )
    (table,) = tables("Between nodes")
    panels = [
        (
            f"2 nodes of {ranks} rank{'s' * (ranks > 1)}",
            [
                Point(row["bytes"], number(row["ours"]), number(row["Gloo"]))
                for row in table
                if row["nodes × ranks"] == f"2 × {ranks}"
            ],
        )
        for ranks in (1, 2)
    ]
    _curves(picture, "Gloo", panels)
    return picture


def steps() -> Picture:
    """Draw the time of training steps as a part of torch's."""
    picture = Picture(
        "plot-steps",
        "Training steps beside torch's",
        "Time of a step, divided by that of torch over Gloo: DDP, a GPT, FSDP2 and three pipeline "
        "schedules with 2 ranks. The tables have the same figures.",
    )
    training, pipelines = tables("Training steps of torch")[0], tables("Pipelines")[-1]
    rows = [
        (row["model"].split(", ms")[0], number(row["our backend / Gloo"]))
        for row in training
        if "one rank" not in row["model"]
    ]
    rows += [(f"pipeline, {row['schedule']}", number(row["ours / torch's"])) for row in pipelines]
    picture.label(20, 38, "time of a step, divided by torch's over Gloo", "plot", "start")
    widest, top = RIGHT - 72, 62.0
    for place, (name, ratio) in enumerate(rows):
        y, end = top + 62 * place, 20 + widest * ratio
        picture.label(20, y + 18, name, "plot muted", "start")
        picture.box((20, y + 27, end - 20, 26), style="blue")
        picture.label(end - 8, y + 47, f"{ratio:.2f}", "plot", "end")
    bottom = top + 62 * len(rows)
    picture.line([(20 + widest, top), (20 + widest, bottom)], "orange-line thick dashed")
    for part, text, anchor in (
        (0.0, "0", "start"),
        (0.5, "0.5", "middle"),
        (1, "1: torch's", "middle"),
    ):
        picture.label(20 + widest * part, bottom + 26, text, "plot muted", anchor)
    return picture


def launch() -> Picture:
    """Draw how long launchers take."""
    picture = Picture(
        "plot-launch",
        "Times of launchers",
        "Milliseconds from the command to the first lines of two workers, of --help, and from the "
        "SIGKILL of a worker until both print again, by launcher. The table has the same figures.",
    )
    rows = [row for row in tables("Launch")[0] if row[""].endswith(", ms")]
    launchers = [name for name in rows[0] if name and "/" not in name]
    longest = max(number(row[name]) for row in rows for name in launchers if row[name] != "–")
    y = 0.0
    for row in rows:
        y += 38
        picture.label(20, y, row[""].removesuffix(", ms").replace("`", ""), "plot", "start")
        for name in launchers:
            if row[name] != "–":
                y += 34
                short = name.removeprefix("mpiexec ").strip("()")
                picture.label(150, y - 2, short, "plot muted", "end")
                width = (RIGHT - 270) * number(row[name]) / longest
                picture.box(
                    (162, y - 20, width, 24), style="blue" if name == "torshrun" else "orange"
                )
                picture.label(170 + width, y - 1, f"{row[name]} ms", "plot", "start")
        y += 14
    return picture


def _curves(picture: Picture, peer: str, panels: Sequence[tuple[str, Sequence[Point]]]) -> None:
    """Draw panels of our times and a peer's by size, with one legend."""
    picture.line([(24, 32), (64, 32)], "blue-line thick")
    picture.label(74, 39, "ours", "plot", "start")
    picture.line([(160, 32), (200, 32)], "orange-line thick dashed")
    picture.label(210, 39, peer, "plot", "start")
    for place, (title, points) in enumerate(panels):
        top = 104 + place * (HEIGHT + 120)
        picture.label(RIGHT, top - 20, title, "plot bold", "end")
        picture.label(20, top - 20, "time", "plot muted", "start")
        _panel(picture, top, points)


def _duration(decade: int) -> str:
    """Return a power of ten of microseconds, such as "100 µs" or "10 ms"."""
    for power, unit in ((6, "s"), (3, "ms")):
        if decade >= power:
            return f"{10 ** (decade - power)} {unit}"
    return f"{10.0**decade:g} µs"


def _panel(picture: Picture, top: float, points: Sequence[Point]) -> None:
    """Draw axes with logarithmic scales, and two curves."""
    sizes = [size(point.size) for point in points]
    ours, theirs = [point.ours for point in points], [point.theirs for point in points]
    times = ours + theirs
    low, high = math.floor(math.log10(min(times))), math.log10(max(times)) + 0.2

    def across(number: float) -> float:
        part = math.log(number / sizes[0]) / math.log(sizes[-1] / sizes[0])
        return LEFT + 16 + (RIGHT - LEFT - 46) * part

    def down(time: float) -> float:
        return top + HEIGHT * (high - math.log10(time)) / (high - low)

    for decade in range(low, math.floor(high) + 1):
        y = down(10.0**decade)
        picture.line([(LEFT, y), (RIGHT, y)], "grid")
        picture.label(LEFT - 8, y + 7, _duration(decade), "plot muted", "end")
    shown = -math.inf
    for point, each in zip(points, sizes, strict=True):
        if across(each) - shown >= 76:
            shown = across(each)
            picture.label(shown, top + HEIGHT + 28, point.size, "plot muted")
    picture.label((LEFT + RIGHT) / 2, top + HEIGHT + 56, "bytes", "plot muted")
    for curve, colour, style in ((theirs, "orange", " dashed"), (ours, "blue", "")):
        places = [(across(each), down(time)) for each, time in zip(sizes, curve, strict=True)]
        picture.line(places, f"{colour}-line thick{style}")
        for x, y in places:
            picture.dot(x, y, f"{colour}-head", 5)
