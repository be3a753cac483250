"""Finds torshrun's jobs on this host from their workers' status pages and from the kernel."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torshrun.health.pages import WorkerStatus, read_pages
from torshrun.health.report import numbered
from torshrun.health.waits import wait_of
from torshrun.procfs import children, read_stat, read_text
from torshrun.text import printable

_KEEPER = "torsh-keeper"
_SCRATCH = "TORSH_KEEPER_SCRATCH"
_COMMAND_CHARS = 200


class HostJob(NamedTuple):
    """Describes a job, or the node of a job, that runs on this host."""

    agent: int
    """The pid of its agent."""
    command: str
    workers: tuple[HostWorker, ...]
    """The workers, by rank."""
    round: int = 0
    """The round of its workers."""


class HostWorker(NamedTuple):
    rank: int
    pid: int
    status: WorkerStatus
    state: str
    """The state of its process, as in /proc."""
    waits: str
    """The kernel resource that its main thread waits for. Empty if unknown."""
    place: tuple[str, int]
    """The file of its status page, and its local rank."""
    round: int


def find_jobs() -> list[HostJob]:
    """Return the jobs whose processes this user may inspect, ordered by pid."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208
    keepers = ((pid, stat) for pid in pids if (stat := read_stat(pid)) and stat.name == _KEEPER)
    return [_job(pid, stat.parent) for pid, stat in keepers if _environ(pid).get(_SCRATCH)]


def _job(keeper: int, agent: int) -> HostJob:
    words = read_text(f"/proc/{agent}/cmdline", 4096).split("\0")
    command = printable(" ".join(words).strip())[:_COMMAND_CHARS]
    workers = tuple(sorted(_workers(keeper), key=lambda each: each.rank))
    return HostJob(agent, command, workers, max((each.round for each in workers), default=0))


def _workers(keeper: int) -> Iterator[HostWorker]:
    pages: dict[str, Sequence[WorkerStatus]] = {}
    for pid in children(keeper):
        environ, stat = _environ(pid), read_stat(pid)
        path, rank, local = map(environ.get, ("TORSH_STATUS_FILE", "RANK", "LOCAL_RANK"))
        number = environ.get("TORSH_ROUND", "")
        if not (path and rank and local and stat and rank.isdecimal() and local.isdecimal()):
            continue
        if path not in pages:
            pages[path] = read_pages(path)
        found, place = pages[path], int(local)
        status = found[place] if place < len(found) else WorkerStatus()
        wait = wait_of(pid)
        yield HostWorker(
            rank=int(rank),
            pid=pid,
            status=status,
            state=stat.state,
            waits=wait.what if wait else "",
            place=(path, place),
            round=int(number) if number.isdecimal() else 0,
        )


def _environ(pid: int) -> Mapping[str, str]:
    """Return the environment that a process started with. Empty for processes of other users."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r"(?:^|\0)([A-Z_]+)=([^\0]*)", content))


# ---- in words


def in_words(jobs: Sequence[HostJob]) -> str:
    """Return a line for each job, each followed by a line for each of its workers."""
    if not jobs:
        return "no job of torshrun runs on this host, or none that this user may inspect\n"
    return "".join(f"{line}\n" for job in jobs for line in _lines(job))


def _lines(job: HostJob) -> Iterator[str]:
    count = len(job.workers)
    yield f"pid {job.agent}, {count} worker{'' if count == 1 else 's'} here: {job.command}"
    for each in job.workers:
        step = f", step {each.status.step}" if each.status.step is not None else ""
        yield f"  rank {each.rank} (pid {each.pid}{step}): {_does(each)}"


def _does(worker: HostWorker) -> str:
    status, last = worker.status, worker.status.collective
    if worker.state in ("T", "t"):
        return "is stopped (SIGCONT continues it)"
    if last and last.active:
        return f"in {numbered(last)}"
    if status.awaited:
        return f"{status.awaited.what} (rank {status.awaited.rank})"
    after = f"in no collective, last in {numbered(last)}" if last else "in no recorded collective"
    return f"{after}; waits for {worker.waits}" if worker.waits else after
