"""Reads a job of Slurm's from scontrol, and requeues it.

Jobs are identified by SLURM_JOB_ID. Each task of an array has a job id of its own, but one of them
has the array's, which scontrol takes for the whole array. So the job's record is searched for, and
a task is requeued by its name in the array.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

from torsh_runtime import slurm
from torshrun.clusters.hints import NUMBER, Machine
from torshrun.text import printable

_TIME_LIMIT = re.compile(r"[0-9:-]+")
_FACT = re.compile(r"([A-Za-z][\w/:.]*)=(\S*)")
_JOB_NAME = re.compile(r"\bJobName=.*")


def end_of(job: str, machine: Machine) -> float | None:
    """Return when the job is to end, in seconds since 1970, or None if it has no known end."""
    facts = _facts(job, machine.scontrol("show", "job", job).text)
    if not _TIME_LIMIT.fullmatch(facts.get("TimeLimit", "")):  # UNLIMITED, Partition_Limit …
        return None
    with suppress(ValueError, OverflowError):
        return time.mktime(time.strptime(facts.get("EndTime", ""), "%Y-%m-%dT%H:%M:%S"))
    return None


def requeue(job: str, machine: Machine) -> str:
    """Ask Slurm to requeue the job, and no other task of its array.

    A job that has ended or is being cancelled is not requeued, as that is what somebody wants.
    Returns the outcome for people.
    """
    reply = machine.scontrol("show", "job", job)
    facts = _facts(job, reply.text)
    state, name = facts.get("JobState"), _name(job, facts)
    if state is None:
        why = f": {reply.error}" if reply.error else ""
        return f"error: Slurm's job {job} is not requeued: scontrol does not report its state{why}"
    if state != "RUNNING":
        return f"Slurm's job {name} is not requeued: it is {state}"
    if facts.get("Requeue") == "0":
        return f"error: Slurm's job {name} cannot be requeued: submit it with sbatch --requeue"
    if error := machine.scontrol("requeue", name).error:
        return f"error: asking Slurm to requeue job {name} has failed: {printable(error)}"
    return f"Slurm has been asked to requeue job {name}"


def meeting_place(run_id: str, machine: Machine) -> str:
    """Return HOST:PORT where the nodes of a run of that name rendezvous.

    Returns "" if it is no step of a job that Slurm knows. The step is assumed to include the job's
    first node.
    """
    named = re.fullmatch(r"slurm-([0-9]+)\.[0-9]+", run_id)
    if named is None:
        return ""
    nodes = _facts(named[1], machine.scontrol("show", "job", named[1]).text).get("NodeList", "")
    if not nodes or nodes.startswith("("):  # (null): it waits
        return ""
    host = slurm.first_host(nodes, machine.scontrol)
    return f"[{host}]:{slurm.port(run_id)}" if ":" in host else f"{host}:{slurm.port(run_id)}"


def _name(job: str, facts: Mapping[str, str]) -> str:
    """Return the job's name for Slurm's commands: 17, or 17_3 for a task of an array."""
    task = facts.get("ArrayTaskId", "")
    return f"{facts.get('ArrayJobId')}_{task}" if NUMBER.fullmatch(task) else job


def _facts(job: str, text: str) -> Mapping[str, str]:
    """Return the job's own record, or an empty mapping if there is none.

    scontrol shows all tasks of an array, and all components of a heterogeneous job, in any order.
    """
    return next((facts for facts in _records(text) if facts.get("JobId") == job), {})


def _records(text: str) -> Iterator[Mapping[str, str]]:
    """Yield the fields of each job in the output of `scontrol show job`.

    Of fields with the same name the first counts: texts of users (job names, comments, paths) may
    look like fields, too.
    """
    for record in re.split(r"\n\s*\n", text):
        facts: dict[str, str] = {}
        for name, value in _FACT.findall(_JOB_NAME.sub("", record)):
            facts.setdefault(name, value)
        yield facts
