"""Computes the progress and the speed of a worker from its notes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torsh_runtime.monitoring.notes import Note

TOTAL, SAMPLES = "step/total", "step/samples"
"""Names of the scalars that follow a step: the number of steps there will be, and the number of
samples in the step. No keyword that a program may use for a number of its own is like them."""
PROGRESS, OF = "progress/done", "progress/total"
"""Names of the scalars for the position of the innermost bar, and its total."""
WINDOW = 30.0
"""Seconds after which notes say nothing about the present pace."""


class Pace(NamedTuple):
    """Progress and speed of a worker."""

    step: int | None = None
    """Number of the step. None where it marks no steps."""
    total: int | None = None
    """Number of steps there will be, or the total of the bar; None is unknown."""
    done: int | None = None
    """Position of the bar of progress(), where that tells more than steps."""
    per_second: float | None = None
    """Steps a second, or what the bar counts; None is unknown."""
    samples_per_second: float | None = None
    scalars: Mapping[str, float] = {}
    """The last value of each that the program has noted."""


class _Count(NamedTuple):
    time: float
    number: float


def pace_of(notes: Iterable[Note]) -> Pace:
    """Return the pace at the last of these notes, which are in their order."""
    steps: list[_Count] = []
    bars: list[_Count] = []
    samples: list[float] = []
    scalars: dict[str, float] = {}
    for note in notes:
        if note.kind == "step":
            _append(steps, note)
            del samples[: len(samples) - len(steps) + 1]
            samples.append(0.0)
        elif note.kind == "scalar":
            scalars[note.name] = note.value
            if note.name == PROGRESS:
                _append(bars, note)
            elif note.name == SAMPLES and samples:
                samples[-1] += note.value
    return _pace(steps, bars, samples, scalars)


def _append(counts: list[_Count], note: Note) -> None:
    """Append a count. If counting has started anew, earlier counts are dropped."""
    if counts and note.value <= counts[-1].number:
        counts.clear()
    counts.append(_Count(note.time, note.value))


def _pace(
    steps: list[_Count], bars: list[_Count], samples: list[float], scalars: dict[str, float]
) -> Pace:
    total, done, of = scalars.pop(TOTAL, None), scalars.pop(PROGRESS, None), scalars.pop(OF, None)
    scalars.pop(SAMPLES, None)
    shows_bar = total is None and done is not None
    counts = _recent(bars if shows_bar else steps)
    per_second = _rate(counts)
    took = None if len(steps) < 2 else steps[-1].time - steps[0].time
    return Pace(
        _whole(steps[-1].number if steps else None),
        _whole(of if shows_bar else total),
        _whole(done) if shows_bar else None,
        per_second,
        sum(samples[:-1]) / took if took and any(samples) else None,
        scalars,
    )


def _recent(counts: list[_Count]) -> list[_Count]:
    """Return the counts of the last WINDOW seconds, and at least two."""
    kept = [each for each in counts if counts[-1].time - each.time <= WINDOW]
    return kept if len(kept) > 1 else counts[-2:]


def _rate(counts: list[_Count]) -> float | None:
    if len(counts) < 2 or counts[-1].time <= counts[0].time:
        return None
    return (counts[-1].number - counts[0].number) / (counts[-1].time - counts[0].time)


def _whole(number: float | None) -> int | None:
    """Return the number as an integer, or None if it is none, since anybody may have written it."""
    return int(number) if number is not None and abs(number) < 1 << 62 else None
