"""Describes a schedule as data: for each rank of a pipeline the steps that it takes, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice, product
from typing import NamedTuple

from torsh_runtime.errors import ConfigError


class Kind(Enum):
    """Names what a step does, by the letters of torch.distributed.pipelining's tables.

    Example:
        ```python
        Kind("F") is Kind.FORWARD  # True
        ```
    """

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    """The part of a backward pass that earlier stages wait for: gradients of a stage's inputs."""
    WEIGHT = "W"
    """The rest of a backward pass: gradients of a stage's parameters."""
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    REDUCE = "REDUCE_GRAD"


_TOLD = 5
"""Number of a table's problems that a message names."""
COMPUTES = (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT, Kind.WEIGHT)
"""Kinds of steps that have a microbatch."""


class Step(NamedTuple):
    """Describes what a rank does at one time. As text, "1B3" is stage 1, backward, microbatch 3.

    Example:
        ```python
        str(Step(1, Kind.BACKWARD, 3))  # "1B3"
        ```
    """

    stage: int
    """The stage's number."""
    kind: Kind
    """The action, such as a forward pass."""
    microbatch: int | None = None
    """The microbatch's number; None for steps that a whole stage takes once."""

    def __str__(self) -> str:
        at = "" if self.microbatch is None else self.microbatch
        return f"{self.stage}{self.kind.value}{at}"


Row = tuple[Step, ...]


@dataclass(frozen=True)
class Table:
    """Represents a schedule: `rows[rank]` are the steps of that rank of the pipeline.

    Example:
        ```python
        rows = ((Step(0, Kind.FORWARD, 0), Step(0, Kind.BACKWARD, 0)),)
        table = Table(rows, "one stage, one microbatch")
        table.num_stages, table.placement  # 1, (0,)
        ```
    """

    rows: tuple[Row, ...]
    """The steps of each rank, in order."""
    name: str = "table"
    """The name by which errors call the table."""

    @property
    def num_stages(self) -> int:
        """Return the number of stages that the steps name."""
        return 1 + max((step.stage for step in self.steps()), default=-1)

    @property
    def num_microbatches(self) -> int:
        """Return the number of microbatches that the steps name."""
        return 1 + max((step.microbatch or 0 for step in self.steps()), default=-1)

    @property
    def placement(self) -> tuple[int, ...]:
        """Return the rank of each stage.

        Raises:
            ConfigError: For a stage that is on no rank or on several.
        """
        ranks: dict[int, list[int]] = {}
        for rank, row in enumerate(self.rows):
            for stage in dict.fromkeys(step.stage for step in row):
                ranks.setdefault(stage, []).append(rank)
        for stage in range(self.num_stages):
            if len(ranks.get(stage, ())) != 1:
                found = ranks.get(stage, [])
                told = [*map(str, found[:_TOLD]), *(["others"] if len(found) > _TOLD else [])]
                where = " and ".join(told) or "none"
                raise ConfigError(
                    f"{self.name}: stage {stage} is on rank {where}: give each stage one rank"
                )
        return tuple(ranks[stage][0] for stage in range(self.num_stages))

    @property
    def trains(self) -> bool:
        """Return whether the table has backward passes."""
        return any(step.kind in COMPUTES[1:] for step in self.steps())

    @property
    def splits(self) -> bool:
        """Return whether backward passes are in two parts."""
        return any(step.kind is Kind.INPUT for step in self.steps())

    def steps(self) -> Iterator[Step]:
        """Yield the steps of all ranks."""
        for row in self.rows:
            yield from row

    def with_reductions(self) -> Table:
        """Return a table that reduces each stage's gradients after its last backward pass."""
        return replace(self, rows=tuple(_reduced(row) for row in self.rows))


def _reduced(row: Row) -> Row:
    have = {step.stage for step in row if step.kind is Kind.REDUCE}
    last = {step.stage: at for at, step in enumerate(row) if step.kind in COMPUTES[1:]}
    after = {at: Step(stage, Kind.REDUCE) for stage, at in last.items() if stage not in have}
    return tuple(
        each for at, step in enumerate(row) for each in (step, after.get(at)) if each is not None
    )


def check(
    table: Table,
    num_stages: int | None = None,
    num_microbatches: int | None = None,
    placement: Sequence[int] | None = None,
) -> None:
    """Raise ConfigError that names what is wrong with a table.

    Such are a step that is missing or there twice, a stage on two ranks or on a different one than
    in `placement`, and a reduction before its stage's last backward pass. simulate() finds steps
    that wait for each other in a circle.
    """
    problems = [*islice(_problems(table, num_stages, num_microbatches), _TOLD + 1)]
    there = table.placement if not problems or num_stages is None else ()
    if placement is not None and there and tuple(placement) != there:
        wrong = [stage for stage, rank in enumerate(placement) if there[stage] != rank]
        problems += [
            f"stage {stage} has its steps on rank {there[stage]}, and is placed on rank "
            f"{placement[stage]}"
            for stage in wrong
        ]
    if problems:
        more = " and more" if len(problems) > _TOLD else ""
        raise ConfigError(
            f"{table.name} is no schedule: {'; '.join(problems[:_TOLD])}{more}. Mend the table"
        )


def _problems(table: Table, num_stages: int | None, num_microbatches: int | None) -> Iterator[str]:
    """Yield problems one by one: a table with a high number misses more steps than memory holds."""
    stages = table.num_stages if num_stages is None else num_stages
    microbatches = table.num_microbatches if num_microbatches is None else num_microbatches
    counts = Counter(table.steps())
    if not counts:
        yield "it has no steps"
    for step, times in counts.items():
        if _is_twice(step, times):
            yield f"{step} is there {times} times"
        if step.stage not in range(stages):
            yield f"{step} is of a stage that there is not"
        if (step.microbatch or 0) not in range(microbatches):
            yield f"{step} is of a microbatch that there is not"
    trains = table.trains
    for stage, microbatch in product(range(stages), range(microbatches)):
        yield from _missing(counts, stage, microbatch, trains)
    for row in table.rows:
        yield from _early(row)


def _is_twice(step: Step, times: int) -> bool:
    return times > 1 and step.kind not in (Kind.UNSHARD, Kind.RESHARD)


def _missing(counts: Counter[Step], stage: int, microbatch: int, trains: bool) -> list[str]:
    forward, whole, first, second = (Step(stage, kind, microbatch) for kind in COMPUTES)
    problems = [] if counts[forward] else [f"{forward} is missing"]
    if not trains:
        return problems
    parts = [each for each in (first, second) if counts[each]]
    if counts[whole] and parts:
        return [*problems, f"{whole} is there beside {parts[0]}"]
    if counts[whole] or len(parts) == 2:
        return problems
    return [*problems, f"{(second if counts[first] else first) if parts else whole} is missing"]


def _early(row: Row) -> Iterator[str]:
    seen: set[int] = set()
    for step in row:
        if step.kind is Kind.REDUCE:
            seen.add(step.stage)
        elif step.kind in COMPUTES[1:] and step.stage in seen:
            yield f"{step} comes after its stage's reduction"
