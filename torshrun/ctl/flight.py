"""Implements torshctl flight: shows the last operations of all ranks of a job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import click

from torsh_runtime.monitoring.flight import Records, Told, in_words, named
from torsh_runtime.monitoring.layout import MESSAGES, NO_OPERATIONS, Operation
from torshrun.ctl.places import Asking
from torshrun.ctl.recorded import UNSEEN, Recorded, find
from torshrun.health.recordings import Dump
from torshrun.text import format_ranks

SCHEMA = 1
_NOTHING = 1


def show(place: str | None, last: int, asking: Asking | None = None, *, as_json: bool) -> int:
    """Print the operations and return the exit code. `last` is how many to show for each rank."""
    found = find(place, asking)
    for each in found:
        if as_json:
            click.echo(json.dumps(_as_json(each)))
        else:
            click.echo("\n".join(_lines(each, last)))
    return 0 if any(each.operations for each in found) else _NOTHING


def _lines(recorded: Recorded, last: int) -> Iterator[str]:
    records, names = recorded.operations, recorded.group_names
    yield recorded.name
    for line in recorded.silent:
        yield f"  nothing from {line}"
    yield from _of_clocks(recorded.dumps)
    for each in recorded.suspicions:
        yield f"  {in_words(each, 0.0, Told(names))}"
    for rank, held in sorted(records.items()):
        if not held:
            yield f"  rank {rank}: nothing is recorded"
        shown = held[len(held) - last :] if last < len(held) else held
        for operation in shown if last else ():
            yield f"  rank {rank}: {_told(operation, names)}"
    if not any(records.values()):
        yield f"  {UNSEEN}"


def _of_clocks(dumps: Sequence[Dump]) -> Iterator[str]:
    """Yield a line for each node whose clock could not be aligned with the others'."""
    for dump in dumps if len(dumps) > 1 else ():
        if dump.offset is None:
            ranks = format_ranks(dump.records)
            yield f"  times of {ranks} are those of the clock of {dump.host} alone"


def _told(operation: Operation, names: Mapping[int, str]) -> str:
    what = named(operation, names)
    if operation.left is None:
        return f"{what}, running since {-operation.entered:.1f} s"
    took = f"took {_span(operation, operation.left)}"
    if operation.came is not None:
        took += f", waited {_span(operation, operation.came)}"
    state = "" if operation.state == "done" else f", {operation.state}"
    return f"{what}{state}: {took}, ended {-operation.left:.1f} s ago"


def _span(operation: Operation, until: float) -> str:
    return f"{(until - operation.entered) * 1e3:.3f} ms"


def _as_json(recorded: Recorded) -> Mapping[str, object]:
    records = recorded.operations
    return {
        "schema": SCHEMA,
        "job": recorded.name,
        "silent": [*recorded.silent],
        "nodes": [
            {
                "node": dump.node,
                "host": dump.host,
                "ranks": sorted(dump.records),
                "clock_bound": None if dump.offset is None else dump.bound,
            }
            for dump in recorded.dumps
        ],
        "suspicions": [
            {**each._asdict(), "operation": each.operation._asdict(), "last": _by_rank(each.last)}
            for each in recorded.suspicions
        ],
        "groups": _groups(records, recorded.group_names),
        "ranks": {
            rank: [each._asdict() for each in held] for rank, held in sorted(records.items())
        },
    }


def _by_rank(operations: Mapping[int, Operation]) -> Mapping[int, object]:
    return {rank: each._asdict() for rank, each in operations.items()}


def _groups(records: Records, names: Mapping[int, str]) -> Sequence[Mapping[str, object]]:
    """Describe each group: members seen, name, size, and first collective still recorded."""
    seen = sorted(
        (each.group, rank, each.ranks, each.sequence)
        for rank, held in records.items()
        for each in held
        if each.operation not in (*MESSAGES, *NO_OPERATIONS)
    )
    found = []
    for group, each in groupby(seen, key=lambda one: one[0]):
        members = list(each)
        found.append(
            {
                "group": group,
                "name": names.get(group, ""),
                "size": members[0][2],
                "members": sorted({rank for _, rank, _, _ in members}),
                "first_sequence": min(sequence for *_, sequence in members),
            }
        )
    return found
