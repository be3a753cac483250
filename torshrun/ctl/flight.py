"""torshctl flight: the last operations of all ranks, of running jobs or from files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import click

from torsh_runtime.errors import TorshError
from torsh_runtime.monitoring.flight import Records, in_words, named, suspicions
from torsh_runtime.monitoring.layout import Operation
from torshrun.ctl.host_jobs import HostJob, find_jobs
from torshrun.health.recordings import Dump, load, read_recordings

SCHEMA = 1
_NOTHING = 1
_PATTERN = "operations_*.bin"
_TOGETHER = 60.0
"""Seconds within which the nodes of one attempt keep theirs."""


class Unfit(TorshError):
    """There is nothing to show, and why."""


def show(place: str | None, last: int, *, as_json: bool) -> int:
    """Print it; the exit code. `last`: how many operations of each rank are shown in words."""
    found = list(_jobs(place) if place is None or place.isdecimal() else [_kept(Path(place))])
    if not found:
        raise Unfit("no job of torshrun's runs on this host, or none that this user may look at")
    for name, records in found:
        if as_json:
            click.echo(json.dumps(_as_json(name, records)))
        else:
            click.echo("\n".join(_lines(name, records, last)))
    return 0 if any(records for _, records in found) else _NOTHING


def _jobs(pid: str | None) -> Iterator[tuple[str, Records]]:
    jobs = [job for job in find_jobs() if pid is None or job.agent == int(pid)]
    if pid is not None and not jobs:
        raise Unfit(f"process {pid} is no torshrun of this host that this user may look at")
    for job in jobs:
        yield f"pid {job.agent}: {job.command}", _records_of(job)


def _records_of(job: HostJob) -> Records:
    read: dict[str, list[list[Operation]]] = {}
    found: dict[int, Sequence[Operation]] = {}
    for worker in job.workers:
        file, local_rank = worker.place
        if file not in read:
            read[file] = read_recordings(file)
        if local_rank < len(read[file]):
            found[worker.rank] = read[file][local_rank]
    return found


def _kept(folder: Path) -> tuple[str, Records]:
    """The newest attempt below the folder that has any; all nodes of it."""
    try:
        files = sorted((path.stat().st_mtime, str(path)) for path in folder.rglob(_PATTERN))
        loaded = [(time, dump) for time, path in files if (dump := load(path))]
    except OSError as error:
        raise Unfit(f"cannot read {folder}: {error.strerror}") from None
    if not loaded:
        raise Unfit(
            f"there are no recorded operations below {folder}: torshrun keeps them where a job "
            f"fails or hangs and has a --log-dir"
        )
    ended, newest = loaded[-1]
    nodes: dict[int, Dump] = {
        dump.node: dump
        for time, dump in loaded
        if time >= ended - _TOGETHER and (dump.run_id, dump.round) == (newest.run_id, newest.round)
    }
    records = {
        rank: held for _, dump in sorted(nodes.items()) for rank, held in dump.records.items()
    }
    hosts = ", ".join(dict.fromkeys(dump.host for _, dump in sorted(nodes.items())))
    return f"run {newest.run_id}, attempt {newest.round}, {len(records)} ranks of {hosts}", records


def _lines(name: str, records: Records, last: int) -> Iterator[str]:
    yield name
    for each in suspicions(records):
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


def _as_json(name: str, records: Records) -> Mapping[str, object]:
    return {
        "schema": SCHEMA,
        "job": name,
        "suspicions": [
            {**each._asdict(), "operation": each.operation._asdict(), "last": _by_rank(each.last)}
            for each in suspicions(records)
        ],
        "groups": _groups(records),
        "ranks": {
            rank: [each._asdict() for each in held] for rank, held in sorted(records.items())
        },
    }


def _by_rank(operations: Mapping[int, Operation]) -> Mapping[int, object]:
    return {rank: each._asdict() for rank, each in operations.items()}


def _groups(records: Records) -> Sequence[Mapping[str, object]]:
    """Who was seen in each group, its size, and the first operation of it that is still held."""
    seen = sorted(
        (each.group, rank, each.ranks, each.sequence)
        for rank, held in records.items()
        for each in held
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
