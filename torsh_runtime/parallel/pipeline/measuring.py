"""What steps cost, measured."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.modules import adapter_class
from torsh_runtime.parallel.agreement import texts_of_all
from torsh_runtime.parallel.pipeline.files import from_json, to_json
from torsh_runtime.parallel.pipeline.simulation import Costs, Simulation, Span
from torsh_runtime.parallel.pipeline.stage import Stage
from torsh_runtime.parallel.pipeline.table import Kind, Step, Table

RUNS = 3
"""The least time of so many counts; the first one agrees on shapes."""
Run = Callable[[Table], Sequence[Span]]


def measured_costs(
    group: ProcessGroup,
    stages: Mapping[int, Stage],
    placement: Sequence[int],
    run: Run,
    can_split: bool,
) -> Costs:
    """Of one microbatch, the same on all ranks. run: takes the steps of a table of one microbatch,
    and returns this rank's spans."""
    tables = [_single(placement, Kind.BACKWARD)]
    if can_split:
        tables.append(_single(placement, Kind.INPUT, Kind.WEIGHT))
    best: dict[tuple[int, Kind], float] = {}
    with _unchanged(stages):
        for table in tables:
            for _ in range(RUNS):
                for step, start, end in ((s.step, s.start, s.end) for s in run(table)):
                    key = step.stage, step.kind
                    best[key] = min(best.get(key, end - start), end - start)
    own = np.zeros((len(placement), 6))
    for number, stage in stages.items():
        row = [best.get((number, kind), 0.0) for kind in _KINDS]
        own[number, :5] = [*row, stage.held]
    return _costs(group, own, placement, {n: s.sent_bytes for n, s in stages.items()})


_KINDS = (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT, Kind.WEIGHT)


def _costs(
    group: ProcessGroup, own: Any, placement: Sequence[int], sent: Mapping[int, int]
) -> Costs:
    """Everyone's figures; then neighbours time messages of the size of their activations."""
    for number in range(len(placement) - 1):
        pair = placement[number], placement[number + 1]
        sizes = group.all_gather_numbers(np.array([sent.get(number, 0)], np.int64))[:, 0]
        if group.rank in pair and pair[0] != pair[1]:
            took = _message(group, pair, int(sizes.max()))
            own[number, 5] = took if group.rank == pair[0] else 0.0
    rows = group.all_gather_numbers(own.reshape(-1).view(np.int64)).view(np.float64)
    table = rows.sum(axis=0).reshape(own.shape)
    forward, backward, first, second, held, transfer = map(tuple, table.T.tolist())
    if not any(first):
        first, second = backward, tuple(0.0 for _ in backward)
    return Costs(forward, first, second, backward, transfer, activation=held)


def _message(group: ProcessGroup, pair: tuple[int, int], size: int) -> float:
    """Seconds that a message of so many bytes takes from the one to the other: half of there and
    back."""
    memory = np.zeros(max(size, 1), np.uint8)
    other = pair[1] if group.rank == pair[0] else pair[0]
    times = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        for sends in (True, False) if group.rank == pair[0] else (False, True):
            (group.send if sends else group.recv)(memory, other, 1)
        times.append((time.perf_counter() - begun) / 2)
    return min(times)


def _single(placement: Sequence[int], *back: Kind) -> Table:
    """One microbatch forward and back."""
    stages = range(len(placement))
    steps = [Step(stage, Kind.FORWARD, 0) for stage in stages]
    steps += [Step(stage, kind, 0) for stage in reversed(stages) for kind in back]
    rows = [
        tuple(step for step in steps if placement[step.stage] == rank)
        for rank in range(1 + max(placement))
    ]
    return Table(tuple(rows), f"one {'+'.join(kind.value for kind in back)}")


@contextmanager
def _unchanged(stages: Mapping[int, Stage]) -> Iterator[None]:
    """Gradients, buffers and random numbers are after the block what they were before."""
    adapters = [adapter_class(s.module)(s.module) for s in stages.values()]
    autograd = next(iter(stages.values())).autograd
    random = autograd.random_state()
    gradients = [
        (adapter, p, None if adapter.gradient(p) is None else adapter.clone(adapter.gradient(p)))
        for adapter in adapters
        for _, p in adapter.parameters()
    ]
    buffers = [(a, buffer, a.clone(buffer)) for a in adapters for _, buffer in a.buffers()]
    try:
        yield
    finally:
        for adapter, parameter, gradient in gradients:
            adapter.set_gradient(parameter, gradient)
        for adapter, buffer, values in buffers:
            adapter.copy(buffer, values)
        autograd.set_random_state(random)


def timeline_of(group: ProcessGroup, spans: Sequence[Span], table: Table) -> Simulation:
    """What every rank's steps came to, in the form of a simulation. It blocks."""
    texts = texts_of_all(group, json.dumps([(span.start, span.end) for span in spans]))
    rows = tuple(
        tuple(Span(step, *times) for step, times in zip(row, json.loads(text), strict=True))
        for row, text in zip(table.rows, texts, strict=True)
    )
    return Simulation(table, rows)


def save_timeline(timeline: Simulation, path: Any) -> None:
    """Write what timeline() returned, for the command that draws tables."""
    spans = [[(span.start, span.end) for span in row] for row in timeline.spans]
    content = {"table": json.loads(to_json(timeline.table)), "spans": spans}
    path.write_text(json.dumps(content), encoding="utf-8")


def load_timeline(path: Any) -> Simulation:
    """The opposite."""
    content = json.loads(path.read_text(encoding="utf-8"))
    table = from_json(json.dumps(content["table"]))
    rows = tuple(
        tuple(Span(step, *times) for step, times in zip(row, spans, strict=True))
        for row, spans in zip(table.rows, content["spans"], strict=True)
    )
    return Simulation(table, rows)
