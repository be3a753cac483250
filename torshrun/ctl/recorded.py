"""Where torshctl finds what workers have recorded: jobs of this host, or files that agents kept."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torsh_runtime.errors import TorshError
from torsh_runtime.monitoring.layout import Operation
from torshrun.ctl.host_jobs import HostJob, find_jobs
from torshrun.health.alignment import aligned
from torshrun.health.recordings import Dump, Record, load, read_recordings

_PATTERN = "operations_*.bin"
_TOGETHER = 60.0
"""Seconds within which the nodes of one attempt keep theirs."""


class Unfit(TorshError):
    """There is nothing to show, and why."""


class Recorded(NamedTuple):
    """What is known of one job, or one attempt of it."""

    name: str
    """For people."""
    dumps: Sequence[Dump]
    """Of its nodes, by rank of the node, on one clock as far as that is known."""

    @property
    def operations(self) -> Mapping[int, Sequence[Operation]]:
        """Of all nodes, by rank."""
        return {rank: held for dump in self.dumps for rank, held in dump.operations.items()}

    @property
    def members(self) -> Mapping[int, Sequence[int]]:
        """Of the groups that all ranks tell of, by number."""
        records = (record for dump in self.dumps for record in dump.records.values())
        found = (group for record in records for group in record.groups)
        return {group.number: group.members for group in found if group.members}


def find(place: str | None) -> list[Recorded]:
    """Of a directory, the pid of a torshrun of this host, or (None) all of these. Unfit if there is
    nothing.
    """
    if place is not None and not place.isdecimal():
        return [_kept(Path(place))]
    jobs = [job for job in find_jobs() if place is None or job.agent == int(place)]
    if not jobs and place is None:
        raise Unfit("no job of torshrun's runs on this host, or none that this user may look at")
    if not jobs:
        raise Unfit(f"process {place} is no torshrun of this host that this user may look at")
    return [of_job(job) for job in jobs]


def of_job(job: HostJob) -> Recorded:
    """What its workers have noted until now."""
    files = dict.fromkeys(worker.place[0] for worker in job.workers)
    read = {file: read_recordings(file) for file in files}
    records: dict[int, Record] = {}
    at = 0.0
    for worker in job.workers:
        file, local_rank = worker.place
        at, of_file = read[file]
        if local_rank < len(of_file):
            records[worker.rank] = of_file[local_rank]
    dump = Dump("", job.round, 0, os.uname().nodename, at, records)
    return Recorded(f"pid {job.agent}: {job.command}", [dump])


def _kept(folder: Path) -> Recorded:
    """The newest attempt below the folder that has any; all nodes of it."""
    found = list(loaded(folder))
    if not found:
        raise Unfit(
            f"there are no recorded operations below {folder}: torshrun keeps them where a job "
            f"fails or hangs and has a --log-dir"
        )
    ended, newest = found[-1]
    nodes: dict[int, Dump] = {
        dump.node: dump
        for time, dump in found
        if time >= ended - _TOGETHER and (dump.run_id, dump.round) == (newest.run_id, newest.round)
    }
    dumps = aligned([dump for _, dump in sorted(nodes.items())])
    count = sum(len(dump.records) for dump in dumps)
    hosts = ", ".join(dict.fromkeys(dump.host for dump in dumps))
    return Recorded(f"run {newest.run_id}, attempt {newest.round}, {count} ranks of {hosts}", dumps)


def loaded(folder: Path) -> Iterator[tuple[float, Dump]]:
    """When each was written, and what it holds, the oldest first."""
    try:
        files = sorted((path.stat().st_mtime, str(path)) for path in folder.rglob(_PATTERN))
    except OSError as error:
        raise Unfit(f"cannot read {folder}: {error.strerror}") from None
    for time, path in files:
        if dump := load(path):
            yield time, dump
