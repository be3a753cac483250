"""Slurm: srun with one torshrun on each node, and batch scripts."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import replace

from torsh_runtime import slurm
from torshrun.clusters.hints import GRACE_MARGIN, NUMBER, Environ, Hint, Hints, Machine

_GPUS = re.compile("[1-9][0-9]{0,3}")
_LONGEST = 10 * 366 * 86400.0
"""Seconds; an end that is farther away, or over, is none that Slurm has told."""
_UNLIMITED = ("UNLIMITED", "NOT_SET")


def allocation(environ: Environ, machine: Machine) -> Hints | None:
    """What holds for any torshrun inside the job; None if there is no job."""
    job = environ.get("SLURM_JOB_ID")
    if not job or not NUMBER.fullmatch(job):
        return None
    gpus = environ.get("SLURM_GPUS_ON_NODE", "")
    restarts = environ.get("SLURM_RESTART_COUNT", "0")
    configuration = machine.scontrol("show", "config")
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
    """ConfigError if Slurm's variables contradict each other."""
    step = slurm.step(environ)
    if step is None:
        return _batch_script(hints, environ)
    if step.world_size > len(step.tasks):
        hints = replace(hints, mistake=_several(step))
    elif len(step.tasks) > 1:
        hints = _among_nodes(hints, step, machine)
    return replace(hints, run_id=Hint(step.name, "SLURM_JOB_ID"))


def _batch_script(hints: Hints, environ: Environ) -> Hints:
    """It is one process on the first node, whatever the job has."""
    nodes = environ.get("SLURM_JOB_NUM_NODES", "1")
    if nodes == "1":
        return hints
    here = environ.get("SLURMD_NODENAME", "this node")
    told = f"on {here} only, of the job's {nodes} nodes, as srun did not start it (srun torshrun …)"
    return replace(hints, found=(*hints.found, told))


def _several(step: slurm.Step) -> str:
    most = max(step.tasks)
    return (
        f"Slurm has started {step.world_size} torshruns on {len(step.tasks)} node(s) "
        f"(SLURM_STEP_TASKS_PER_NODE; this one has SLURM_LOCALID={step.local_rank}), and a node "
        f"needs one, which starts its workers: srun --ntasks={len(step.tasks)} "
        f"--ntasks-per-node=1 torshrun --nproc-per-node={most} …"
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
    """Slurm tells it in the environment from version 23.02 on."""
    end = environ.get("SLURM_JOB_END_TIME", "")
    if re.fullmatch(r"[0-9]{1,12}", end) and 0 < int(end) - machine.now() < _LONGEST:
        return Hint(_seconds(int(end) - machine.now()), "SLURM_JOB_END_TIME")
    told = machine.scontrol("--oneliner", "show", "job", job)
    facts = dict(re.findall(r"\b(TimeLimit|EndTime)=(\S+)", told))
    if facts.get("TimeLimit", "NOT_SET") in _UNLIMITED:
        return None
    with suppress(ValueError, OverflowError):  # SLURM_TIME_FORMAT may say something else
        ends = time.mktime(time.strptime(facts.get("EndTime", ""), "%Y-%m-%dT%H:%M:%S"))
        return Hint(_seconds(ends - machine.now()), "scontrol show job")
    return None


def _seconds(left: float) -> str:
    return f"{max(left, 0.0):.0f}"


def requeue(job: str, machine: Machine) -> str:
    """Have Slurm put the job into its queue again, unless it is being cancelled or has ended: then
    somebody wants that. What became of it, for people.
    """
    told = machine.scontrol("--oneliner", "show", "job", job)
    state = re.search(r"\bJobState=(\w+)", told)
    if state is None:
        return f"error: Slurm's job {job} is not requeued: scontrol does not tell its state"
    if state[1] != "RUNNING":
        return f"Slurm's job {job} is not requeued: it is {state[1]}"
    if re.search(r"\bRequeue=0\b", told):
        return f"error: Slurm's job {job} cannot be requeued: submit it with sbatch --requeue"
    machine.scontrol("requeue", job)
    return f"Slurm has been asked to requeue job {job}"


def meeting_place(run_id: str, machine: Machine) -> str:
    """HOST:PORT where the nodes of a run of that name meet; "" if it is no step of a job that Slurm
    knows. The step is taken to have the job's first node.
    """
    named = re.fullmatch(r"slurm-([0-9]+)\.[0-9]+", run_id)
    told = machine.scontrol("--oneliner", "show", "job", named[1]) if named else ""
    nodes = re.search(r" NodeList=([^\s(]+)", told)
    if nodes is None:
        return ""
    host = slurm.first_host(nodes[1], machine.scontrol)
    return f"[{host}]:{slurm.port(run_id)}" if ":" in host else f"{host}:{slurm.port(run_id)}"
