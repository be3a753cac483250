"""torshctl flight: the last operations of all ranks, of running jobs or from files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import click

from torsh_runtime.monitoring.flight import Members, Records, in_words, named, suspicions
from torsh_runtime.monitoring.layout import MESSAGES, NO_OPERATIONS, Operation
from torshrun.ctl.recorded import find

SCHEMA = 1
_NOTHING = 1


def show(place: str | None, last: int, *, as_json: bool) -> int:
    """Print it; the exit code. `last`: how many operations of each rank are shown in words."""
    found = [(each.name, each.operations, each.members) for each in find(place)]
    for name, records, members in found:
        if as_json:
            click.echo(json.dumps(_as_json(name, records, members)))
        else:
            click.echo("\n".join(_lines(name, records, members, last)))
    return 0 if any(records for _, records, _ in found) else _NOTHING


def _lines(name: str, records: Records, members: Members, last: int) -> Iterator[str]:
    yield name
    for each in suspicions(records, members):
        yield f"  {in_words(each, 0.0)}"
    for rank, held in sorted(records.items()):
        if not held:
            yield f"  rank {rank}: nothing is recorded"
        shown = held[len(held) - last :] if last < len(held) else held
        for operation in shown if last else ():
            yield f"  rank {rank}: {_told(operation)}"


def _told(operation: Operation) -> str:
    what = named(operation)
    if operation.left is None:
        return f"{what}, running since {-operation.entered:.1f} s"
    took = f"took {_span(operation, operation.left)}"
    if operation.came is not None:
        took += f", waited {_span(operation, operation.came)}"
    state = "" if operation.state == "done" else f", {operation.state}"
    return f"{what}{state}: {took}, ended {-operation.left:.1f} s ago"


def _span(operation: Operation, until: float) -> str:
    return f"{(until - operation.entered) * 1e3:.3f} ms"


def _as_json(name: str, records: Records, members: Members) -> Mapping[str, object]:
    return {
        "schema": SCHEMA,
        "job": name,
        "suspicions": [
            {**each._asdict(), "operation": each.operation._asdict(), "last": _by_rank(each.last)}
            for each in suspicions(records, members)
        ],
        "groups": _groups(records),
        "ranks": {
            rank: [each._asdict() for each in held] for rank, held in sorted(records.items())
        },
    }


def _by_rank(operations: Mapping[int, Operation]) -> Mapping[int, object]:
    return {rank: each._asdict() for rank, each in operations.items()}


def _groups(records: Records) -> Sequence[Mapping[str, object]]:
    """Who was seen in each group, its size, and the first collective of it that is still held."""
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
                "size": members[0][2],
                "members": sorted({rank for _, rank, _, _ in members}),
                "first_sequence": min(sequence for *_, sequence in members),
            }
        )
    return found
