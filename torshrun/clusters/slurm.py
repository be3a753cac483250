"""Reads hints of Slurm, for batch scripts and for srun with one torshrun on each node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from torsh_runtime import slurm
from torshrun.clusters.hints import GRACE_MARGIN, NUMBER, Environ, Hint, Hints, Machine
from torshrun.clusters.slurm_job import end_of

_GPUS = re.compile("[1-9][0-9]{0,3}")
_LONGEST = 10 * 366 * 86400.0
"""Seconds. An end that is farther away, or in the past, is not considered to be Slurm's."""


def allocation(environ: Environ, machine: Machine) -> Hints | None:
    """Return what holds for any torshrun inside the job, or None if there is no job."""
    job = environ.get("SLURM_JOB_ID")
    if not job or not NUMBER.fullmatch(job):
        return None
    gpus = environ.get("SLURM_GPUS_ON_NODE", "")
    restarts = environ.get("SLURM_RESTART_COUNT", "0")
    configuration = machine.scontrol("show", "config").text
    begun = f"job {job}" if restarts == "0" else f"job {job}, requeued {restarts} time(s)"
    return Hints(
        cluster="slurm",
        found=(begun,),
        nproc_per_node=Hint(gpus, "SLURM_GPUS_ON_NODE") if _GPUS.fullmatch(gpus) else None,
        run_id=Hint(f"slurm-{job}", "SLURM_JOB_ID"),
        shutdown_timeout=_grace(configuration),
        time_limit=_time_limit(job, environ, machine),
        signals_reach_workers="proctrack/linuxproc" in configuration,
        requeues=job if environ.get("SLURM_NODEID", "0") == "0" else "",
    )


def place(hints: Hints, environ: Environ, machine: Machine) -> Hints:
    """Add the job's nodes. Raises ConfigError if Slurm's variables contradict each other."""
    step = slurm.step(environ)
    if step is None:
        return replace(hints, found=(*hints.found, *_outside_steps(environ)))
    if step.world_size > len(step.tasks):
        hints = replace(hints, mistake=_several(step, environ))
    elif len(step.tasks) > 1:
        hints = _among_nodes(hints, step, machine)
    return replace(hints, run_id=Hint(step.name, "SLURM_JOB_ID"))


def _outside_steps(environ: Environ) -> Iterator[str]:
    """Describe that a batch script or a shell is one process, whatever the job has."""
    nodes, here = environ.get("SLURM_JOB_NUM_NODES", "1"), environ.get("SLURMD_NODENAME")
    if here is None:  # where salloc was called
        which = "node" if nodes == "1" else f"{nodes} nodes"
        yield f"on this host, as srun did not start it on the job's {which} ({_srun(nodes)})"
    elif nodes != "1":
        srun = _srun(nodes, overlap=True) if slurm.in_shell(environ) else "srun torshrun …"
        yield f"on {here} only, of the job's {nodes} nodes, as srun did not start it ({srun})"


def _srun(nodes: object, *options: str, overlap: bool = False, cpus: int = 0) -> str:
    """Return the command that starts one torshrun on each of `nodes` nodes.

    In a shell that is itself the task of a step srun waits forever for the shell's resources,
    unless both may share them (`overlap`).
    """
    shared = " --overlap" if overlap else ""
    own = f" --cpus-per-task={cpus}" if cpus else ""
    words = " ".join([*options, "…"])
    return f"srun{shared}{own} --ntasks={nodes} --ntasks-per-node=1 torshrun {words}"


def _several(step: slurm.Step, environ: Environ) -> str:
    most = max(step.tasks)
    each = environ.get("SLURM_CPUS_PER_TASK", "1")
    is_even = min(step.tasks) == most and NUMBER.fullmatch(each)
    srun = _srun(
        len(step.tasks),
        f"--nproc-per-node={most}",
        overlap="SLURM_PTY_PORT" in environ,
        cpus=most * int(each) if is_even else 0,  # the processors that all tasks of a node have now
    )
    return (
        f"Slurm has started {step.world_size} torshruns on {len(step.tasks)} node(s) "
        f"(SLURM_STEP_TASKS_PER_NODE; this one has SLURM_LOCALID={step.local_rank}), and a node "
        f"needs one, which starts its workers: {srun}"
    )


def _among_nodes(hints: Hints, step: slurm.Step, machine: Machine) -> Hints:
    host = slurm.first_host(step.nodelist, machine.scontrol)
    port = slurm.port(step.name)
    nodes = len(step.tasks)
    told = f"step {step.number}: node {step.node_rank} of {nodes}"
    return replace(
        hints,
        found=(*hints.found, told),
        nnodes=Hint(str(nodes), "SLURM_STEP_NUM_NODES"),
        node_rank=Hint(str(step.node_rank), "SLURM_NODEID"),
        master_addr=Hint(host, "SLURM_STEP_NODELIST"),
        master_port=Hint(str(port), "SLURM_JOB_ID"),
    )


def _grace(configuration: str) -> Hint:
    wait = re.search(r"^KillWait\s*=\s*([0-9]{1,6}) sec", configuration, re.MULTILINE)
    if wait is None:
        return Hint("25", "KillWait's default, 30 s")
    return Hint(f"{max(int(wait[1]) - GRACE_MARGIN, 1):g}", f"KillWait={wait[1]}")


def _time_limit(job: str, environ: Environ, machine: Machine) -> Hint | None:
    """Return the time until the end of the job.

    Slurm has it in the environment from version 23.02 on.
    """
    end = environ.get("SLURM_JOB_END_TIME", "")
    if re.fullmatch(r"[0-9]{1,12}", end) and 0 < int(end) - machine.now() < _LONGEST:
        return Hint(_seconds(int(end) - machine.now()), "SLURM_JOB_END_TIME")
    ends = end_of(job, machine)
    return None if ends is None else Hint(_seconds(ends - machine.now()), "scontrol show job")


def _seconds(left: float) -> str:
    return f"{max(left, 0.0):.0f}"
