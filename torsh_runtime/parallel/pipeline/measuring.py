"""Measures the costs of steps."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.comm.agreement import texts_of_all
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, framework_of
from torsh_runtime.framework.models import trained_parameters
from torsh_runtime.parallel.pipeline.autograd import Autograd
from torsh_runtime.parallel.pipeline.files import from_json, read_text, to_json
from torsh_runtime.parallel.pipeline.lanes import Lanes
from torsh_runtime.parallel.pipeline.simulation import Costs, Simulation, Span
from torsh_runtime.parallel.pipeline.stage import Stage
from torsh_runtime.parallel.pipeline.table import Kind, Step, Table
from torsh_runtime.parallel.regions.arrays import copied, empty

RUNS, WARM_UP = 9, 2
"""Number of measurements, whose median counts, and of runs before them."""
BURST = 4
"""Number of consecutive messages, as many as a shaped link may let pass at once."""
_KINDS = (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT, Kind.WEIGHT)


def measured_costs(
    group: ProcessGroup,
    lanes: Lanes | None,
    stages: Mapping[int, Stage],
    placement: Sequence[int],
    run: Callable[[Table], object],
    can_split: bool,
) -> Costs:
    """Measure the costs of one microbatch, the same on all ranks.

    Ranks compute at the same time, as they do in training. lanes: used for values on GPUs. run:
    takes the steps of a table of one microbatch.
    """
    own = np.zeros((len(placement), 6))
    with unchanged([stage.module for stage in stages.values()], _any(stages).autograd):
        for stage in stages.values():
            stage.is_sampling = True
        run(one(placement))
        for stage in stages.values():
            stage.is_sampling = False
        for (number, kind), times in _times(group, stages, can_split).items():
            own[number, _KINDS.index(kind)] = median(times)
    for number, stage in stages.items():
        own[number, 4] = stage.held
        stage.sample, stage.sample_gradients = None, ()
    sent = {number: stage.sent_bytes for number, stage in stages.items()}
    like = np.empty(0) if lanes is None else lanes.like
    burst = _Burst(lanes or group, like, _any(stages).autograd.synchronise)
    return _costs(group, burst, own, placement, sent)


def _times(
    group: ProcessGroup, stages: Mapping[int, Stage], can_split: bool
) -> dict[tuple[int, Kind], list[float]]:
    times: dict[tuple[int, Kind], list[float]] = defaultdict(list)
    for turn in range(WARM_UP + RUNS):
        group.barrier()
        for number, stage in stages.items():
            for kind, call in stage.again(can_split):
                begun = time.perf_counter()
                call()
                stage.autograd.synchronise()
                if turn >= WARM_UP:
                    times[number, kind].append(time.perf_counter() - begun)
    return times


class _Burst(NamedTuple):
    """Measures how long messages take."""

    messages: ProcessGroup | Lanes
    like: Any
    """Array on the device from which messages are sent."""
    synchronise: Callable[[], None]
    """Waits for what is under way on the device."""

    def time(self, pair: tuple[int, int], size: int) -> float:
        """Return the seconds that a message of `size` bytes takes between two ranks.

        It is one of several that follow each other.
        """
        group, rank = self.messages, self.messages.rank
        memory = empty(self.like, (size // self.like.itemsize + 1,))
        answer = empty(self.like, (1,))
        times = []
        for _ in range(RUNS):
            begun = time.perf_counter()
            if rank == pair[0]:
                works = [group.send(memory, pair[1], 1, async_op=True) for _ in range(BURST)]
                for work in works:
                    work.wait()
                group.recv(answer, pair[1], 1)
            else:
                for _ in range(BURST):
                    group.recv(memory, pair[0], 1)
                group.send(answer, pair[0], 1)
            self.synchronise()
            times.append((time.perf_counter() - begun) / BURST)
        return median(times)


def _costs(
    group: ProcessGroup,
    burst: _Burst,
    own: NDArray[np.float64],
    placement: Sequence[int],
    sent: Mapping[int, int],
) -> Costs:
    """Combine the figures of all ranks, after neighbours have timed messages.

    These have the size of their activations.
    """
    for number in range(len(placement) - 1):
        pair = placement[number], placement[number + 1]
        sizes = group.all_gather_numbers(np.array([sent.get(number, 0)], np.int64))[:, 0]
        if group.rank in pair and pair[0] != pair[1]:
            took = burst.time(pair, int(sizes.max()))
            own[number, 5] = took if group.rank == pair[0] else 0.0
    rows = group.all_gather_numbers(own.reshape(-1).view(np.int64)).view(np.float64)
    table = rows.sum(axis=0).reshape(own.shape)
    forward, backward, first, second, held, transfer = map(tuple, table.T.tolist())
    if not any(first):
        first, second = backward, tuple(0.0 for _ in backward)
    return Costs(forward, first, second, backward, transfer, activation=held)


def one(placement: Sequence[int]) -> Table:
    """Return the table of one microbatch that goes forward and back."""
    stages = range(len(placement))
    steps = [Step(stage, Kind.FORWARD, 0) for stage in stages]
    steps += [Step(stage, Kind.BACKWARD, 0) for stage in reversed(stages)]
    rows = [
        tuple(step for step in steps if placement[step.stage] == rank)
        for rank in range(1 + max(placement))
    ]
    return Table(tuple(rows), "one microbatch")


def _any(stages: Mapping[int, Stage]) -> Stage:
    return next(iter(stages.values()))


@contextmanager
def unchanged(modules: Sequence[Module], autograd: Autograd) -> Iterator[None]:
    """Restore gradients, buffers and random numbers after the block."""
    random = autograd.random_state()
    gradients = [
        (p, None if p.grad is None else copied(p.grad.data))
        for module in modules
        for _, p in trained_parameters(module)
    ]
    buffers = [(b, copied(b.data)) for module in modules for _, b in module.named_buffers()]
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = None
            if gradient is not None:
                framework_of(parameter).set_gradient(parameter, gradient)
        for buffer, values in buffers:
            buffer.data[...] = values
        autograd.set_random_state(random)


def timeline_of(group: ProcessGroup, spans: Sequence[Span], table: Table) -> Simulation:
    """Return the times of all ranks' steps in the form of a simulation. It blocks."""
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
    """Read what save_timeline() wrote. ConfigError for any other file."""
    try:
        content = json.loads(read_text(path))
        table = from_json(json.dumps(content["table"]))
        rows = tuple(
            tuple(_span(step, *map(float, times)) for step, times in zip(row, spans, strict=True))
            for row, spans in zip(table.rows, content["spans"], strict=True)
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} is no timeline of save_timeline(): {error}") from None
    return Simulation(table, rows)


def _span(step: Step, start: float, end: float) -> Span:
    if not 0 <= start <= end < math.inf:
        raise ValueError(f"{step} is from {start:g} to {end:g} s")
    return Span(step, start, end)
