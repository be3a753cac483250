"""Reads hints of PBS (OpenPBS, PBS Professional), for job scripts and for pbsdsh.

pbsdsh starts one torshrun on each node.
"""

from __future__ import annotations

import re
from dataclasses import replace

from torsh_runtime import slurm
from torshrun.clusters.hints import GRACE_MARGIN, NUMBER, Environ, Hint, Hints, Machine

_JOB = re.compile(r"[0-9]+[\[\]0-9]*(\.[A-Za-z0-9_.-]+)?")
_KILL_DELAY = 10.0  # seconds between SIGTERM and SIGKILL, unless a queue has another


def allocation(environ: Environ, machine: Machine) -> Hints | None:
    job = environ.get("PBS_JOBID")
    if not job or not _JOB.fullmatch(job):
        return None
    return Hints(
        cluster="pbs",
        found=(f"job {job}",),
        run_id=Hint(f"pbs-{job}", "PBS_JOBID"),
        shutdown_timeout=Hint(f"{_KILL_DELAY - GRACE_MARGIN:g}", "kill_delay's default, 10 s"),
    )


def place(hints: Hints, environ: Environ, machine: Machine) -> Hints:
    nodes = hosts(environ, machine)
    if len(nodes) < 2:
        return hints
    if not _is_spawned(environ):
        return replace(hints, found=(*hints.found, _alone(nodes, environ)))
    return _among_nodes(hints, nodes, environ)


def hosts(environ: Environ, machine: Machine) -> list[str]:
    """Return the job's hosts, each once, in the order of their numbers."""
    path = environ.get("PBS_NODEFILE")
    return list(dict.fromkeys(machine.read(path).split())) if path else []


def _alone(nodes: list[str], environ: Environ) -> str:
    told = f"on this node only, of the job's {len(nodes)}, as"
    if _is_torque(environ):
        return f"{told} Torque does not tell more (--nnodes, --node-rank and --master-addr do)"
    return f"{told} it is the job script's (pbsdsh -- torshrun …)"


def _is_torque(environ: Environ) -> bool:
    return environ.get("PBS_VERSION", "").upper().startswith("TORQUE")


def _is_spawned(environ: Environ) -> bool:
    """Return whether pbsdsh or another task manager has started this process.

    The job script is task 1 of node 0. Torque numbers tasks differently, so that it cannot be known
    there.
    """
    node, task = environ.get("PBS_NODENUM", ""), environ.get("PBS_TASKNUM", "")
    if _is_torque(environ) or not NUMBER.fullmatch(node):
        return False
    return int(node) > 0 or (bool(NUMBER.fullmatch(task)) and int(task) > 1)


def _among_nodes(hints: Hints, nodes: list[str], environ: Environ) -> Hints:
    name = f"pbs-{environ['PBS_JOBID']}"
    rank, port = environ["PBS_NODENUM"], slurm.port(name)
    if int(rank) >= len(nodes):
        return replace(
            hints,
            mistake=f"PBS_NODENUM={rank}, but PBS_NODEFILE names {len(nodes)} hosts: start "
            f"torshrun by pbsdsh on whole nodes (-l place=scatter), or give --nnodes, --node-rank "
            f"and --master-addr",
        )
    return replace(
        hints,
        found=(*hints.found, f"node {rank} of {len(nodes)}"),
        nnodes=Hint(str(len(nodes)), "PBS_NODEFILE"),
        node_rank=Hint(rank, "PBS_NODENUM"),
        master_addr=Hint(nodes[0], "PBS_NODEFILE"),
        master_port=Hint(str(port), "PBS_JOBID"),
    )
