"""Computes what a table costs, in time, idle time and memory, and whether it can end, before it
runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.pipeline.table import COMPUTES, Kind, Step, Table

Edge = tuple[int, int, Kind]
"""Sending and receiving stage, of activations (FORWARD) or their gradients (BACKWARD)."""


@dataclass(frozen=True)
class Costs:
    """Holds the time that steps take, in any one unit, and what they hold.

    A sequence has a number for each stage; a number counts for all.

    Example:
        ```python
        costs = Costs(forward=1.0, input=1.0, weight=1.0, transfer=0.1)
        simulate(table, costs).makespan
        ```
    """

    forward: float | Sequence[float] = 1.0
    """Time of a forward pass."""
    input: float | Sequence[float] = 1.0
    """Time of the part of a backward pass that earlier stages wait for."""
    weight: float | Sequence[float] = 1.0
    """Time of the rest of a backward pass."""
    backward: float | Sequence[float] | None = None
    """Time of a whole backward pass; None is that of both parts."""
    transfer: float | Sequence[float] = 0.0
    """Time for which a message occupies the link between two ranks, by the stage that sends it."""
    latency: float = 0.0
    """Time from the end of that until the message has arrived."""
    reduce: float | Sequence[float] = 0.0
    """Time of a reduction of a stage's gradients."""
    unshard: float | Sequence[float] = 0.0
    """Time of making a stage's parameters whole."""
    activation: float | Sequence[float] = 1.0
    """Memory of a microbatch from its forward pass until its backward pass has ended."""
    kept: float = 1.0
    """Fraction of that which is held from a backward pass's first part to its second."""

    def of(self, step: Step) -> float:
        """Return the time that a step takes."""
        if step.kind is Kind.BACKWARD and self.backward is None:
            return _at(self.input, step.stage) + _at(self.weight, step.stage)
        found: dict[Kind, float | Sequence[float]] = {
            Kind.FORWARD: self.forward,
            Kind.BACKWARD: self.backward or 0.0,
            Kind.INPUT: self.input,
            Kind.WEIGHT: self.weight,
            Kind.UNSHARD: self.unshard,
            Kind.RESHARD: 0.0,
            Kind.REDUCE: self.reduce,
        }
        return _at(found[step.kind], step.stage)

    def sending(self, stage: int) -> float:
        """Return the time for which a message of this stage occupies its link."""
        return _at(self.transfer, stage)

    def holds(self, stage: int) -> float:
        """Return what a microbatch holds in this stage."""
        return _at(self.activation, stage)


def _at(cost: float | Sequence[float], stage: int) -> float:
    return float(cost if isinstance(cost, int | float) else cost[stage])


@dataclass(frozen=True)
class Span:
    """Records the beginning and the end of a step."""

    step: Step
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """Holds the times, memory and messages of a table.

    Example:
        ```python
        result = simulate(pipeline.table)
        print(f"{result.bubble:.0%} of the time is idle")
        ```
    """

    table: Table
    """The table that was simulated."""
    spans: tuple[tuple[Span, ...], ...]
    """Spans of each rank."""
    peaks: tuple[float, ...] = ()
    """Largest amount of activations that each rank holds at once."""
    buffers: Mapping[Edge, int] = field(default_factory=dict)
    """Largest number of messages of each edge that are sent and not yet used."""

    @property
    def makespan(self) -> float:
        """Return the time from the first step's start to the last one's end."""
        return max((span.end for row in self.spans for span in row), default=0.0)

    @property
    def bubble(self) -> float:
        """Return the fraction of all ranks' time that is idle."""
        busy = sum(span.end - span.start for row in self.spans for span in row)
        return 1 - busy / (len(self.spans) * self.makespan) if self.makespan else 0.0

    @property
    def idle(self) -> tuple[float, ...]:
        """Return how long each rank waits between its first and its last step."""
        return tuple(
            row[-1].end - row[0].start - sum(span.end - span.start for span in row) if row else 0.0
            for row in self.spans
        )


def dependency(step: Step, num_stages: int) -> Step | None:
    """Return the step of another kind or stage that has to come before this one, or None.

    The backward pass is named B even where it is I.
    """
    stage, kind, microbatch = step
    if kind is Kind.FORWARD:
        return Step(stage - 1, kind, microbatch) if stage else None
    if kind in (Kind.BACKWARD, Kind.INPUT):
        if stage == num_stages - 1:
            return Step(stage, Kind.FORWARD, microbatch)
        return Step(stage + 1, Kind.BACKWARD, microbatch)
    return Step(stage, Kind.INPUT, microbatch) if kind is Kind.WEIGHT else None


def simulate(table: Table, costs: Costs | None = None) -> Simulation:
    """Simulate a table.

    Each rank takes its steps in order, each as soon as its inputs have arrived. Sends cost ranks no
    time, and use each link one after the other.

    Args:
        table: The table.
        costs: What steps take; None is 1 for each part.

    Raises:
        ConfigError: If steps wait for each other in a circle, which it names.

    Example:
        ```python
        result = simulate(pipeline.table, pipeline.costs)
        print(result.makespan, result.peaks)
        ```
    """
    run = _Run(table, costs or Costs())
    run.go()
    return Simulation(table, tuple(map(tuple, run.spans)), tuple(run.peaks()), run.buffers())


class _Run:
    def __init__(self, table: Table, costs: Costs) -> None:
        self.table, self.costs = table, costs
        self.stages, self.placement = table.num_stages, table.placement
        self.spans: list[list[Span]] = [[] for _ in table.rows]
        self.forms = {  # under which name of a step it is looked for
            Step(s.stage, Kind.BACKWARD, s.microbatch): s
            for s in table.steps()
            if s.kind is Kind.INPUT
        }
        self.ends: dict[Step, float] = {}
        self.arrivals: dict[Step, float] = {}
        self.links: dict[tuple[int, int], float] = defaultdict(float)
        self.sent: dict[Step, tuple[Edge, float]] = {}

    def go(self) -> None:
        waiting = set(range(len(self.table.rows)))
        while waiting:
            moved = [rank for rank in sorted(waiting) if self._advance(rank)]
            waiting -= {r for r in waiting if len(self.spans[r]) == len(self.table.rows[r])}
            if waiting and not moved:
                raise ConfigError(self._circle(min(waiting)))

    def _advance(self, rank: int) -> bool:
        row, spans = self.table.rows[rank], self.spans[rank]
        before = len(spans)
        while len(spans) < len(row):
            step = row[len(spans)]
            ready = self._ready(step)
            if ready is None:
                break
            start = max(ready, spans[-1].end if spans else 0.0)
            spans.append(Span(step, start, start + self.costs.of(step)))
            self._finish(step, spans[-1].end)
        return len(spans) > before

    def _needs(self, step: Step) -> tuple[Step, ...]:
        needed = dependency(step, self.stages)
        own = Step(step.stage, Kind.FORWARD, step.microbatch)
        is_back = step.kind in (Kind.BACKWARD, Kind.INPUT)
        found = {needed, own if is_back else None} - {None}
        return tuple(self.forms.get(each, each) for each in found if each is not None)

    def _ready(self, step: Step) -> float | None:
        """Return when everything that the step needs is there; None if that is not known yet."""
        needed = self._needs(step)
        if any(each not in self.ends for each in needed):
            return None
        times = [
            self.arrivals.get(each, 0.0) if each.stage != step.stage else self.ends[each]
            for each in needed
        ]
        return max(times, default=0.0)

    def _finish(self, step: Step, end: float) -> None:
        self.ends[step] = end
        to = step.stage + (1 if step.kind is Kind.FORWARD else -1)
        if step.kind not in COMPUTES[:3] or to not in range(self.stages):
            return
        link = (self.placement[step.stage], self.placement[to])
        if link[0] == link[1]:
            self.arrivals[step] = end
            return
        self.links[link] = max(end, self.links[link]) + self.costs.sending(step.stage)
        self.arrivals[step] = self.links[link] + self.costs.latency
        kind = Kind.FORWARD if step.kind is Kind.FORWARD else Kind.BACKWARD
        self.sent[step] = ((step.stage, to, kind), end)

    def _circle(self, rank: int) -> str:
        """Describe the steps that wait for each other.

        A rank's next step waits for one that comes after another rank's next step, and so on, until
        a rank comes again.
        """
        places = {step: rank for rank, row in enumerate(self.table.rows) for step in row}
        seen: dict[int, int] = {}
        texts: list[str] = []
        while rank not in seen:
            seen[rank] = len(texts)
            step = self.table.rows[rank][len(self.spans[rank])]
            awaited = next(each for each in self._needs(step) if each not in self.ends)
            if awaited not in places:
                return f"{self.table.name}: {step} needs {awaited}, which is missing"
            rank = places[awaited]
            ahead = self.table.rows[rank][len(self.spans[rank])]
            behind = "" if ahead == awaited else f", behind {ahead}"
            texts.append(f"{step} waits for {awaited} (rank {rank}{behind})")
        return (
            f"{self.table.name} would hang, for steps wait for each other in a circle: "
            f"{'; '.join(texts[seen[rank] :])}. Let one of them come earlier in its rank's row"
        )

    def peaks(self) -> list[float]:
        found = []
        for row in self.spans:
            held = peak = 0.0
            for span in row:  # a rank does one thing at a time
                size = self.costs.holds(span.step.stage)
                if span.step.kind is Kind.FORWARD:
                    held += size
                    peak = max(peak, held)
                elif self.table.trains:
                    held -= size * self._freed(span.step.kind)
            found.append(peak if self.table.trains else max(map(self._largest, [row])))
        return found

    def _freed(self, kind: Kind) -> float:
        part = {Kind.BACKWARD: 1.0, Kind.INPUT: 1 - self.costs.kept, Kind.WEIGHT: self.costs.kept}
        return part.get(kind, 0.0)

    def _largest(self, row: Sequence[Span]) -> float:
        return max((self.costs.holds(span.step.stage) for span in row), default=0.0)

    def buffers(self) -> dict[Edge, int]:
        events: dict[Edge, list[tuple[float, int]]] = defaultdict(list)
        starts = {span.step: span.start for row in self.spans for span in row}
        for step, (edge, end) in self.sent.items():
            name = Step(edge[1], edge[2], step.microbatch)
            used = starts.get(self.forms.get(name, name))
            if used is not None:
                events[edge] += [(end, 1), (used, -1)]
        return {edge: _most(each) for edge, each in events.items()}


def _most(events: Sequence[tuple[float, int]]) -> int:
    """Return how many are there at once; at equal times arrivals come before departures."""
    there = most = 0
    for _, change in sorted(events, key=lambda event: (event[0], -event[1])):
        there += change
        most = max(most, there)
    return most
