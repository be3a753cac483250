"""Reads hints of LSF, for job scripts and for blaunch with one torshrun on each host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from torsh_runtime import slurm
from torshrun.clusters.hints import GRACE_MARGIN, NUMBER, Environ, Hint, Hints, Machine

_TERMINATE_INTERVAL = 10.0  # seconds between SIGTERM and SIGKILL, unless lsb.params says otherwise


def allocation(environ: Environ, machine: Machine) -> Hints | None:
    if not NUMBER.fullmatch(environ.get("LSB_JOBID", "")):
        return None
    name = run_id(environ)
    grace = f"{_TERMINATE_INTERVAL - GRACE_MARGIN:g}"
    return Hints(
        cluster="lsf",
        found=(f"job {name.removeprefix('lsf-')}",),
        run_id=Hint(name, "LSB_JOBID"),
        shutdown_timeout=Hint(grace, "JOB_TERMINATE_INTERVAL's default, 10 s"),
    )


def run_id(environ: Environ) -> str:
    """Return a name for the job, or the task of an array.

    All tasks of an array have one LSB_JOBID.
    """
    job, index = environ.get("LSB_JOBID", ""), environ.get("LSB_JOBINDEX", "0")
    return f"lsf-{job}" if index in ("", "0") else f"lsf-{job}[{index}]"


def place(hints: Hints, environ: Environ, machine: Machine) -> Hints:
    nodes = hosts(environ, machine)
    if len(nodes) < 2:
        return hints
    if not NUMBER.fullmatch(environ.get("LSF_PM_TASKID", "")):
        told = f"on this host only, of the job's {len(nodes)}, as blaunch did not start it"
        return replace(hints, found=(*hints.found, told))
    return _among_nodes(hints, nodes, int(environ["LSF_PM_TASKID"]) - 1)


def hosts(environ: Environ, machine: Machine) -> list[str]:
    """Return the job's hosts, each once."""
    return list(_slots(environ, machine))


def first_host(environ: Environ, machine: Machine) -> str:
    """Return the host of the first process of a parallel program, or "" if unknown.

    Where jobs have a launch host, it is their first host, has one slot, and jsrun starts nothing
    there.
    """
    slots = _slots(environ, machine)
    names = list(slots)
    has_launch_host = len(names) > 1 and slots[names[0]] == 1 < max(slots.values())
    if "JSM_NAMESPACE_RANK" in environ and has_launch_host:
        return names[1]
    return names[0] if names else ""


def _slots(environ: Environ, machine: Machine) -> Mapping[str, int]:
    """Return the slots by host, in the job's order.

    LSF leaves out LSB_MCPU_HOSTS where it would be too long.
    """
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    if words:
        counts = (int(word) if NUMBER.fullmatch(word) else 1 for word in words[1::2])
        return dict(zip(words[::2], counts, strict=False))
    path = environ.get("LSB_DJOB_HOSTFILE")
    return Counter((path and machine.read(path).split()) or environ.get("LSB_HOSTS", "").split())


def _among_nodes(hints: Hints, nodes: list[str], rank: int) -> Hints:
    if not 0 <= rank < len(nodes):
        return replace(
            hints,
            mistake=f"LSF_PM_TASKID={rank + 1}, but the job has {len(nodes)} hosts: blaunch one "
            f'torshrun on each: blaunch -z "{" ".join(nodes)}" torshrun …',
        )
    port = slurm.port(hints.run_id.text if hints.run_id else "")
    return replace(
        hints,
        found=(*hints.found, f"node {rank} of {len(nodes)}"),
        nnodes=Hint(str(len(nodes)), "LSB_MCPU_HOSTS"),
        node_rank=Hint(str(rank), "LSF_PM_TASKID"),
        master_addr=Hint(nodes[0], "LSB_MCPU_HOSTS"),
        master_port=Hint(str(port), "LSB_JOBID"),
    )
