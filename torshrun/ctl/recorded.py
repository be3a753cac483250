"""Where torshctl finds what workers have recorded: jobs of this host, or files that agents kept."""

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

if TYPE_CHECKING:  # few look at runs
    from torshrun.ctl.questions import Answered

UNSEEN = (
    "Operations of torch.distributed's own gloo, nccl and mpi are not recorded (--torch-backend "
    "torsh takes gloo's place), and none with TORSH_RECORDER=off"
)
"""What to tell where no operation is recorded."""
WAITED = 5.0
"""Seconds for which ranks of a running job wait for others before that is worth a word."""
_PATTERN = "operations_*.bin"


class Recorded(NamedTuple):
    """What is known of one job, or one attempt of it."""

    name: str
    """For people."""
    dumps: Sequence[Dump]
    """Of its nodes, by rank of the node, on one clock as far as that is known."""
    silent: Sequence[str] = ()
    """Lines about nodes of which something is missing."""
    folder: str = ""
    """Where what is known was kept, of one attempt; "" is a running job."""

    @property
    def operations(self) -> Mapping[int, Sequence[Operation]]:
        """Of all nodes, by rank."""
        return {rank: held for dump in self.dumps for rank, held in dump.operations.items()}

    @property
    def members(self) -> Mapping[int, Sequence[int]]:
        """Of the groups that all ranks tell of, by number."""
        return {group.number: group.members for group in self._groups() if group.members}

    @property
    def group_names(self) -> Mapping[int, str]:
        """What groups are called, by number."""
        return {group.number: printable(group.name) for group in self._groups() if group.name}

    @property
    def suspicions(self) -> list[Suspicion]:
        """Who keeps others waiting, or differs from them. In a running job ranks always wait for
        each other: only those count that have waited for WAITED seconds."""
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
    """Of a directory, the pid of a torshrun of this host, (None) all of these, or a run whose
    agents are asked, if `asking` tells where its nodes meet. Unfit if there is nothing.
    """
    if place is not None and asking and asking.is_run(place):
        return [of_answers(place, asking.ask(place, ["records"])["records"])]
    if place is not None and not place.isdecimal():
        return [kept(Path(place))]
    return [of_job(job) for job in jobs_here(place)]


def of_answers(run_id: str, answered: Answered) -> Recorded:
    """Of a run, by what its agents have answered."""
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
    """What the workers of one that runs here have noted until now."""
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
        if time >= ended - TOGETHER and (dump.run_id, dump.round) == (newest.run_id, newest.round)
    }
    dumps = aligned([dump for _, dump in sorted(nodes.items())])
    count = sum(len(dump.records) for dump in dumps)
    hosts = ", ".join(dict.fromkeys(dump.host for dump in dumps))
    name = f"run {newest.run_id}, attempt {newest.round}, {count} ranks of {hosts}"
    return Recorded(name, dumps, folder=f"{folder}")


def loaded(folder: Path) -> Iterator[tuple[float, Dump]]:
    """When each was written, and what it holds, the oldest first."""
    try:
        files = files_below(folder, _PATTERN)
    except OSError as error:
        raise Unfit(f"cannot read {folder}: {error.strerror}") from None
    for time, path in files:
        if dump := load(path):
            yield time, dump
