"""Finds where the time of each step went, by rank.

It is own work, communication that the rank waited for, communication that its work hid, and the
ranks it waited for. This module has no side effects; agents and workers use it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, TypeVar

from torsh_runtime.monitoring import replay
from torsh_runtime.monitoring.joining import Call, Held, Records, joined
from torsh_runtime.monitoring.layout import operations_of
from torsh_runtime.monitoring.notes import Note, groups_of, notes_of
from torsh_runtime.monitoring.spans import Source, Span, spans
from torsh_runtime.monitoring.stretches import Cover, Stretch

T = TypeVar("T")


class Breakdown(NamedTuple):
    """Holds the breakdown of one step of one rank, in seconds.

    Example:
        ```python
        mean = tr.monitoring.analyse({0: tr.monitoring.own_record()}).mean(0)
        if mean is not None:
            print(f"{mean.own:.3f} s of work, {mean.exposed:.3f} s of communication")
        ```
    """

    rank: int
    """The rank."""
    step: int
    """The step's number."""
    begin: float
    """The time at which the step began, in seconds of CLOCK_MONOTONIC."""
    end: float
    """The time at which it ended."""
    own: float
    """Seconds in no operation: `end - begin - exposed`."""
    exposed: float
    """Seconds in operations, and in waits for those in the background: `waiting + moving`."""
    hidden: float
    """Seconds in which the rank worked while an operation went on in the background."""
    waiting: float
    """Seconds in operations until all ranks had entered."""
    moving: float
    """Seconds after that, until the rank left the operation. All of them where nobody knows when
    all had entered."""
    waiting_for: Mapping[int, float]
    """Waiting seconds by the rank that came last; -1 is unknown."""
    sections: Mapping[str, float]
    """Seconds of own work, by section of the script. Of nested sections the inner one counts."""

    @property
    def seconds(self) -> float:
        """Return the length of the step in seconds."""
        return self.end - self.begin


@dataclass(frozen=True)
class Analysis:
    """Holds the result of analyse(): what records say about the steps that they contain completely.

    Example:
        ```python
        analysis = tr.monitoring.analyse({0: tr.monitoring.own_record()})
        for step in analysis.of_rank(0):
            print(step.step, step.seconds)
        ```
    """

    source: Source
    """The source of the steps: notes, the pattern in which operations repeat, or windows of a
    second."""
    steps: Sequence[Breakdown]
    """Breakdowns ordered by step, then by rank."""
    calls: Mapping[int, Sequence[Call]]
    """Operations of each rank, in the order in which they were entered."""

    def of_rank(self, rank: int) -> list[Breakdown]:
        """Return the rank's steps, ascending."""
        return [each for each in self.steps if each.rank == rank]

    def mean(self, rank: int) -> Breakdown | None:
        """Return the rank's mean step, or None without any."""
        return mean_of(self.of_rank(rank))

    def speedup_without(self, rank: int) -> float | None:
        """Return how many times as fast the steps would be if this rank were as fast as the others.

        Its own work would then take as long as the median of the other ranks'. The result is None
        if the records do not allow an answer.

        Example:
            ```python
            speedup = analysis.speedup_without(3)
            if speedup is not None:
                print(f"rank 3 costs {speedup - 1:.0%}")
            ```
        """
        windows, steps = self._common_window()
        if rank not in windows or len(windows) < 2:
            return None
        return replay.speedup_without(rank, self.calls, windows, steps)

    def _common_window(self) -> tuple[dict[int, Stretch], int]:
        """Return begin and end of the steps that all ranks have, by rank, and the number of these
        steps."""
        held: dict[int, dict[int, Breakdown]] = {}
        for each in self.steps:
            held.setdefault(each.rank, {})[each.step] = each
        common = set.intersection(*map(set, held.values())) if held else set()
        if not common:
            return {}, 0
        first, last = min(common), max(common)
        window = {rank: (of_rank[first].begin, of_rank[last].end) for rank, of_rank in held.items()}
        return window, len(common)


def analyse(records: Records, bound: float | None = 0.0) -> Analysis:
    """Break the records down, step by step. The records may contain anything.

    Args:
        records: The records of own_record(), by rank.
        bound: The seconds by which the clocks of two ranks may differ; None: they cannot be
            compared.

    Returns:
        The steps that the records contain completely, by rank.

    Example:
        ```python
        records = [None] * tr.get_world_size()
        tr.all_gather_object(records, tr.monitoring.own_record())
        analysis = tr.monitoring.analyse(dict(enumerate(records)))
        ```
    """
    calls = joined(records, bound)
    source, found = spans(calls, {rank: record.notes for rank, record in records.items()})
    steps = [
        breakdown
        for rank, of_rank in found.items()
        for breakdown in breakdowns(rank, calls[rank], records[rank].notes, of_rank)
    ]
    return Analysis(source, sorted(steps, key=lambda each: (each.step, each.rank)), calls)


def own_record() -> Held:
    """Return what this process has noted recently, to be sent to a process that analyses it.

    It is empty if TORSH_RECORDER is off.

    Example:
        ```python
        analysis = tr.monitoring.analyse({0: tr.monitoring.own_record()})
        ```
    """
    from torsh_runtime.monitoring.recording import own_recording  # not needed by agents

    recording = own_recording()
    if recording is None:
        return Held()
    words, later = recording.words(), recording.words()
    return Held(operations_of(words, later), notes_of(words, later), groups_of(words))


def breakdowns(
    rank: int, calls: Sequence[Call], notes: Sequence[Note], of_rank: Sequence[Span]
) -> list[Breakdown]:
    """Return the breakdowns of one rank's steps."""
    if not of_rank:
        return []
    front = [call for call in calls if not call.operation.in_background]
    back = [call for call in calls if call.operation.in_background]
    exposed = Cover((call.entered, call.left) for call in front)
    waiting = Cover((call.entered, call.came) for call in front)
    all_of_it = Cover((call.entered, call.left) for call in (*front, *back))
    whom = _by_whom(front)
    sections = sections_of(notes, max(span.end for span in of_rank))
    found = []
    for number, begin, end in of_rank:
        in_calls, waited = exposed.within(begin, end), waiting.within(begin, end)
        found.append(
            Breakdown(
                rank,
                number,
                begin,
                end,
                own=end - begin - in_calls,
                exposed=in_calls,
                hidden=max(all_of_it.within(begin, end) - in_calls, 0.0),
                waiting=waited,
                moving=max(in_calls - waited, 0.0),
                waiting_for=_amounts(whom, begin, end),
                sections=_own_amounts(sections, exposed, begin, end),
            )
        )
    return found


def mean_of(steps: Sequence[Breakdown]) -> Breakdown | None:
    """Return the mean of some steps of one rank, with the newest one's number, or None without
    any."""
    if not steps:
        return None
    last = steps[-1]
    amounts = [fmean(values) for values in zip(*(each[4:9] for each in steps), strict=True)]
    own, exposed, hidden, waiting, moving = amounts
    return Breakdown(
        last.rank,
        last.step,
        last.end - fmean(each.seconds for each in steps),
        last.end,
        own,
        exposed,
        hidden,
        waiting,
        moving,
        _means([each.waiting_for for each in steps]),
        _means([each.sections for each in steps]),
    )


def sections_of(notes: Iterable[Note], until: float) -> dict[str, Cover]:
    """Return, by section, the times in which the main thread was in it and in none within it. A
    section that has not ended lasts until `until`."""
    found: dict[str, list[Stretch]] = {}
    since, name = -math.inf, ""
    for moment, open_ones in _changes(notes):
        if name:
            found.setdefault(name, []).append((since, moment))
        since, name = moment, open_ones[-1].name if open_ones else ""
    if name:
        found.setdefault(name, []).append((since, until))
    return {name: Cover(stretches) for name, stretches in found.items()}


def open_sections(notes: Iterable[Note]) -> list[Note]:
    """Return the begins of the sections that have not ended, from the outermost on."""
    held: list[Note] = []
    for _, open_ones in _changes(notes):
        held = open_ones
    return held


def _changes(notes: Iterable[Note]) -> Iterator[tuple[float, list[Note]]]:
    """Yield each moment at which the main thread begins or ends a section, with the sections open
    then."""
    held: list[Note] = []
    for note in sorted(notes, key=lambda note: note.time):
        if note.thread or note.kind not in ("begin", "end") or not math.isfinite(note.time):
            continue
        names = [each.name for each in held]
        if note.kind == "begin":
            held = [*held, note]
        elif note.name in names:  # open sections within it end with it
            held = held[: len(names) - 1 - names[::-1].index(note.name)]
        yield note.time, held


def _by_whom(front: Sequence[Call]) -> dict[int, Cover]:
    found: dict[int, list[Stretch]] = {}
    for call in front:
        found.setdefault(call.last, []).append((call.entered, call.came))
    return {rank: Cover(stretches) for rank, stretches in found.items()}


def _amounts(covers: Mapping[int, Cover], begin: float, end: float) -> dict[int, float]:
    found = ((name, cover.within(begin, end)) for name, cover in covers.items())
    return {name: seconds for name, seconds in found if seconds > 0}


def _own_amounts(
    sections: Mapping[str, Cover], exposed: Cover, begin: float, end: float
) -> dict[str, float]:
    found = {}
    for name, cover in sections.items():
        seconds = sum(
            until - since - exposed.within(since, until)
            for a, b in cover.between(begin, end)
            if (since := max(a, begin)) < (until := min(b, end))
        )
        if seconds > 0:
            found[name] = seconds
    return found


def _means(amounts: Sequence[Mapping[T, float]]) -> dict[T, float]:
    found: dict[T, float] = {}
    for each in amounts:
        for name, seconds in each.items():
            found[name] = found.get(name, 0.0) + seconds / len(amounts)
    return found
