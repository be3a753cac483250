"""Finds what workers have recorded, in jobs of this host or in files that agents kept."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torsh_runtime.monitoring.flight import Suspicion, suspicions
from torsh_runtime.monitoring.layout import Operation
from torsh_runtime.monitoring.notes import Group
from torshrun.ctl.host_jobs import HostJob
from torshrun.ctl.places import Asking, Unfit, jobs_here
from torshrun.health.accounts import TOGETHER, files_below
from torshrun.health.alignment import aligned
from torshrun.health.recordings import Dump, Record, load, read_dump, read_recordings
from torshrun.text import printable

if TYPE_CHECKING:  # only commands that name a run need it
    from torshrun.ctl.questions import Answered

UNSEEN = (
    "Operations of torch.distributed's own gloo, nccl and mpi are not recorded (--torch-backend "
    "torsh takes gloo's place), and none with TORSH_RECORDER=off"
)
"""The hint that is shown where no operation is recorded."""
WAITED = 5.0
"""Seconds that ranks of a running job must have waited before it is reported."""
_PATTERN = "operations_*.bin"


class Recorded(NamedTuple):
    """Holds what is known of one job, or of one attempt of a job."""

    name: str
    """The name that is shown to people."""
    dumps: Sequence[Dump]
    """The recordings of its nodes by node rank, on one clock as far as that is known."""
    silent: Sequence[str] = ()
    """Lines about nodes whose data is missing or incomplete."""
    folder: str = ""
    """The directory that the recordings of an attempt were read from. Empty for a running job."""

    @property
    def operations(self) -> Mapping[int, Sequence[Operation]]:
        """Return the operations of all nodes, by rank."""
        return {rank: held for dump in self.dumps for rank, held in dump.operations.items()}

    @property
    def members(self) -> Mapping[int, Sequence[int]]:
        """Return the members of the groups that ranks have recorded, by group number."""
        return {group.number: group.members for group in self._groups() if group.members}

    @property
    def group_names(self) -> Mapping[int, str]:
        """Return the names of groups, by group number."""
        return {group.number: printable(group.name) for group in self._groups() if group.name}

    @property
    def suspicions(self) -> list[Suspicion]:
        """Return the ranks that others wait for, or that differ from the others.

        In a running job ranks always wait for each other. There only those count for which others
        have waited for WAITED seconds.
        """
        found = suspicions(self.operations, self.members)
        is_ended = bool(self.folder)
        return [
            each
            for each in found
            if is_ended or each.kind == "mismatch" or each.has_failed or -each.since >= WAITED
        ]

    def _groups(self) -> Iterator[Group]:
        records = (record for dump in self.dumps for record in dump.records.values())
        return (group for record in records for group in record.groups)


def find(place: str | None, asking: Asking | None = None) -> list[Recorded]:
    """Return what is recorded of `place`.

    That is a directory, the pid of a torshrun of this host, None for all of these, or a run whose
    agents are asked, if `asking` knows where its nodes rendezvous. Raises Unfit if there is
    nothing.
    """
    if place is not None and asking and asking.is_run(place):
        return [of_answers(place, asking.ask(place, ["records"])["records"])]
    if place is not None and not place.isdecimal():
        return [kept(Path(place))]
    return [of_job(job) for job in jobs_here(place)]


def of_answers(run_id: str, answered: Answered) -> Recorded:
    """Return what is recorded of a run, from its agents' answers."""
    dumps = [dump for each in answered.contents.values() if (dump := read_dump(each))]
    count = sum(len(dump.records) for dump in dumps)
    hosts = ", ".join(dict.fromkeys(dump.host for dump in dumps)) or "no node"
    numbers = {dump.round for dump in dumps}
    attempt = f", attempt {max(numbers)}" if numbers else ""
    newest = [dump for dump in dumps if dump.round == max(numbers)]
    by_rank = aligned(sorted(newest, key=lambda dump: dump.node))
    name = f"run {run_id}{attempt}, {count} ranks of {hosts}"
    return Recorded(printable(name), by_rank, answered.silent)


def of_job(job: HostJob) -> Recorded:
    """Return what the workers of a job on this host have recorded until now."""
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


def kept(folder: Path) -> Recorded:
    """Return all nodes of the newest attempt below `folder` that has recordings."""
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
        if time >= ended - TOGETHER and (dump.run_id, dump.round) == (newest.run_id, newest.round)
    }
    dumps = aligned([dump for _, dump in sorted(nodes.items())])
    count = sum(len(dump.records) for dump in dumps)
    hosts = ", ".join(dict.fromkeys(dump.host for dump in dumps))
    name = f"run {newest.run_id}, attempt {newest.round}, {count} ranks of {hosts}"
    return Recorded(name, dumps, folder=f"{folder}")


def loaded(folder: Path) -> Iterator[tuple[float, Dump]]:
    """Yield the time and the content of each file of recordings, the oldest first."""
    try:
        files = files_below(folder, _PATTERN)
    except OSError as error:
        raise Unfit(f"cannot read {folder}: {error.strerror}") from None
    for time, path in files:
        if dump := load(path):
            yield time, dump
