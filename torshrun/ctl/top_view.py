"""Computes what torshctl top shows of a job at one moment, for each rank and for the job. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from torsh_runtime.monitoring.flight import Suspicion, suspicions
from torsh_runtime.monitoring.layout import MESSAGES, NO_OPERATIONS, Operation
from torsh_runtime.monitoring.notes import DEFAULT, Group
from torsh_runtime.monitoring.pace import Pace
from torsh_runtime.monitoring.window import (
    Doing,
    Spent,
    arrived,
    doing,
    notes_until,
    operations_until,
    present_pace,
    spent,
    waited_for,
)
from torshrun.ctl.recorded import Recorded
from torshrun.health.recordings import Dump, Record
from torshrun.text import format_ranks, printable

_MOST_SCALARS = 8


class Usage(NamedTuple):
    """Holds what the kernel reports of a worker."""

    cpu: float | None = None
    """CPUs that it has used since the last sample. None is unknown."""
    memory: int | None = None
    """Resident memory in bytes."""
    state: str = ""
    """The state of its process, as in /proc."""
    waits: str = ""
    """The kernel resource that its main thread waits for. Empty if unknown."""


class Sample(NamedTuple):
    """Holds what is known of a job at one moment."""

    recorded: Recorded
    usage: Mapping[int, Usage] = {}
    """Usage by rank, for jobs on this host only."""
    has_ended: bool = False
    """True for the last sample of a job that has ended."""


class RankView(NamedTuple):
    """Holds what is shown of one rank."""

    rank: int
    pace: Pace
    spent: Spent
    does: str
    """The current activity of the rank, in words."""
    since: float | None
    """Seconds for which it has done this. None is unknown."""
    awaited: tuple[int, ...]
    """The ranks that it waits for at this moment."""
    likeness: tuple[object, ...]
    """A key that is equal for ranks that do the same."""
    usage: Usage


class View(NamedTuple):
    """Holds what is shown of a job, independent of its form."""

    name: str
    place: str
    """The round, and the ranks and hosts in it."""
    at: float
    """Seconds from the last known moment: 0 or less."""
    has_ended: bool
    step: int | None
    """The step of the rank that has got least far, or the count of its progress bar."""
    total: int | None
    rate: float | None
    """Steps per second of the median rank."""
    samples: float | None
    """Samples per second of all ranks."""
    scalars: Mapping[str, float]
    """Averages over the ranks that have reported them."""
    seconds: float
    """Length of the window, in seconds, over which shares are taken."""
    awaited: Mapping[int, float]
    """The share of all ranks' time that was spent waiting for each rank, the largest first."""
    suspicion: Suspicion | None
    """The operation that ranks have waited in longest."""
    silent: Sequence[str]
    """Lines about nodes whose data is missing or incomplete."""
    ranks: Sequence[RankView]


def view(sample: Sample, at: float, seconds: float) -> View:
    """Return the job `at` seconds (0 or less) from the moment of the sample.

    Shares are those of the `seconds` before.
    """
    parts = _by_clock(sample.recorded.dumps, at)
    records = {rank: record for part in parts for rank, record in part.items()}
    operations = {rank: record.operations for rank, record in records.items()}
    found = suspicions(operations, sample.recorded.members)
    ranks = [
        _rank_view(rank, records[rank], sample.usage.get(rank, Usage()), found, at, seconds)
        for rank in sorted(records)
    ]
    paces = [each.pace for each in ranks]
    done = [number for each in paces if (number := done_of(each)) is not None]
    rates = [each.per_second for each in paces if each.per_second is not None]
    samples = [x.samples_per_second for x in paces if x.samples_per_second is not None]
    return View(
        name=printable(sample.recorded.name),
        place=_place(sample.recorded.dumps, len(ranks)),
        at=at,
        has_ended=sample.has_ended,
        step=min(done, default=None),
        total=max((each.total or 0 for each in paces), default=0) or None,
        rate=median(rates) if rates else None,
        samples=sum(samples) if samples else None,
        scalars=_averages(each.scalars for each in paces),
        seconds=seconds,
        awaited=_awaited(parts, at - seconds, at),
        suspicion=found[0] if found else None,
        silent=[*map(printable, sample.recorded.silent)],
        ranks=ranks,
    )


def done_of(pace: Pace) -> int | None:
    """Return how far a rank has got: its step, or the count of its progress bar."""
    return pace.step if pace.done is None else pace.done


def _place(dumps: Sequence[Dump], count: int) -> str:
    """Return a text such as "round 0, 4 ranks of node1"."""
    number = max((dump.round for dump in dumps), default=0)
    hosts = [printable(each) for each in dict.fromkeys(dump.host for dump in dumps)]
    of = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    return f"round {number}, {count} rank{'' if count == 1 else 's'} of {of}"


def _until(dump: Dump, at: float) -> dict[int, Record]:
    if at >= 0:
        return dict(dump.records)
    return {
        rank: record._replace(
            operations=operations_until(record.operations, at), notes=notes_until(record.notes, at)
        )
        for rank, record in dump.records.items()
    }


def _by_clock(dumps: Sequence[Dump], at: float) -> list[dict[int, Record]]:
    """Return the records at that moment, those together whose times can be compared."""
    common: dict[int, Record] = {}
    alone = []
    for dump in dumps:
        if dump.offset is None:
            alone.append(_until(dump, at))
        else:
            common |= _until(dump, at)
    return [*map(_complete, (common, *alone))]


def _complete(records: Mapping[int, Record]) -> dict[int, Record]:
    """Add to each record what the other ranks' records tell of its operations."""
    operations = arrived({rank: record.operations for rank, record in records.items()})
    return {rank: record._replace(operations=operations[rank]) for rank, record in records.items()}


def _awaited(parts: Sequence[Mapping[int, Record]], begin: float, end: float) -> dict[int, float]:
    total: dict[int, float] = {}
    for part in parts:
        operations = {rank: record.operations for rank, record in part.items()}
        for own in waited_for(operations, begin, end).values():
            for rank, seconds in own.items():
                total[rank] = total.get(rank, 0.0) + seconds
    whole = (end - begin) * max(sum(map(len, parts)), 1)
    shares = {rank: seconds / whole for rank, seconds in total.items() if seconds}
    return dict(sorted(shares.items(), key=lambda each: -each[1]))


def _averages(told: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for scalars in told:
        for name, value in scalars.items():
            found.setdefault(name, []).append(value)
    first = list(found.items())[:_MOST_SCALARS]
    return {printable(name): math.fsum(values) / len(values) for name, values in first}


# ---- a rank


def _rank_view(
    rank: int, record: Record, usage: Usage, found: Sequence[Suspicion], at: float, seconds: float
) -> RankView:
    now = doing(record.operations, record.notes)
    awaited = _for_whom(rank, now.awaited, record.groups, found)
    return RankView(
        rank=rank,
        pace=present_pace(record.notes, at),
        spent=spent(record.operations, at - seconds, at),
        does=_in_words(now, awaited, record, usage),
        since=None if now.since is None else max(at - now.since, 0.0),
        awaited=awaited,
        likeness=(
            now.operation and now.operation.operation,
            now.sections,
            awaited,
            usage.state in "Tt",
        ),
        usage=usage,
    )


def _for_whom(
    rank: int, operation: Operation | None, groups: Sequence[Group], found: Sequence[Suspicion]
) -> tuple[int, ...]:
    if operation is None or operation.came is not None:
        return ()
    if operation.operation in MESSAGES:
        return _peer(operation, groups)
    turn = operation.group, operation.sequence
    for each in found:
        if (each.operation.group, each.operation.sequence) == turn and rank in each.waiting:
            return each.ranks
    return ()


def _peer(message: Operation, groups: Sequence[Group]) -> tuple[int, ...]:
    """Return the message's other end as a rank of the job. Empty if unknown."""
    members = next((each.members for each in groups if each.number == message.group), ())
    if 0 <= message.root < len(members):
        return (members[message.root],)
    return (message.root,) if message.root >= 0 and not message.group else ()


def _in_words(now: Doing, awaited: Sequence[int], record: Record, usage: Usage) -> str:
    place = "/".join(map(printable, now.sections))
    within = f", in {place}" if place else ""
    if usage.state in ("T", "t"):
        return "is stopped (SIGCONT continues it)"
    if now.operation is not None:
        waits = f"waits for {format_ranks(awaited)} in " if awaited else "in "
        return f"{waits}{_called(now.awaited or now.operation, record.groups)}{within}"
    is_known = record.operations or record.notes
    does = f"in {place}" if place else "own work" if is_known else "nothing is recorded"
    return f"{does}; waits for {usage.waits}" if usage.waits else does


def _called(operation: Operation, groups: Sequence[Group]) -> str:
    """Name an operation, such as "all_reduce #12 of dp"."""
    name = next((printable(each.name) for each in groups if each.number == operation.group), "")
    of = f" of {name}" if name else f" of group {operation.group:x}" if operation.group else ""
    of = "" if name == DEFAULT else of
    is_unknown = operation.operation in (*MESSAGES, *NO_OPERATIONS) and not operation.sequence
    return f"{operation.operation}{'' if is_unknown else f' #{operation.sequence}'}{of}"
