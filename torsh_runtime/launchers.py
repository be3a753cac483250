"""Places that other launchers than torshrun give: torchrun, Slurm, and MPI libraries' mpiexec."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torsh_runtime import slurm
from torsh_runtime.errors import ConfigError

Environ = Mapping[str, str]


class _Variables(NamedTuple):
    """In which a launcher says where a process stands."""

    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


_PALS = _Variables("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")
"""HPE Cray's mpiexec."""
_FLUX = _Variables("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "")
_MPIEXEC = (
    _Variables(
        *(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    ),
    _Variables("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _PALS,
    _FLUX,
)
"""Open MPI's; MPICH's and those that are made of it, such as Intel MPI's; and others that count as
mpiexec.
"""


def completed(environ: Environ) -> Environ:
    """The same, with the place() that mpiexec or srun gives, and where rank 0 is as far as srun
    tells that. ConfigError if Slurm's variables contradict each other.
    """
    return {**environ, **place(environ), **_master(environ)}


def place(environ: Environ) -> dict[str, str]:
    """RANK and what belongs to it, as mpiexec or srun says; {} if neither has started this process
    as one of several, or RANK is set. ConfigError if Slurm's variables contradict each other.
    """
    if step := _step(environ):
        return {
            "RANK": str(step.rank),
            "WORLD_SIZE": str(step.world_size),
            "LOCAL_RANK": str(step.local_rank),
            "LOCAL_WORLD_SIZE": str(step.tasks[step.node_rank]),
            "GROUP_RANK": str(step.node_rank),
            "GROUP_WORLD_SIZE": str(len(step.tasks)),
        }
    names = _mpiexec(environ)
    if names is None:
        return {}
    world_size, local_size = environ[names.world_size], _local_size(names, environ)
    alone = {"LOCAL_RANK": "0"} if world_size == "1" else {}
    local_rank = environ.get(names.local_rank, environ.get("LOCAL_RANK"))
    return {
        "RANK": environ[names.rank],
        "WORLD_SIZE": world_size,
        **(alone if local_rank is None else {"LOCAL_RANK": local_rank}),
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_WORLD_SIZE": "1" if local_size == world_size else "2",  # or more: it does not say
    }


def _local_size(names: _Variables, environ: Environ) -> str:
    """How many of the ranks are on this host; "0" if that is not known."""
    world_size = environ[names.world_size]
    if world_size == "1" or (names is _FLUX and environ.get("FLUX_JOB_NNODES") == "1"):
        return world_size
    return environ.get(names.local_world_size, "0")


def _step(environ: Environ) -> slurm.Step | None:
    """The step that srun has started with a task for each rank, if that counts."""
    if "RANK" in environ or _mpiexec(environ):
        return None
    step = slurm.step(environ)
    return step if step and step.world_size > 1 else None


def _master(environ: Environ) -> dict[str, str]:
    step = _step(environ)
    if step is None or len(step.tasks) == 1 or "MASTER_ADDR" in environ:
        return {}
    return {
        "MASTER_ADDR": slurm.first_host(step.nodelist, slurm.scontrol),
        "MASTER_PORT": environ.get("MASTER_PORT") or str(slurm.port(step.name)),
    }


def meeting_point(environ: Environ) -> str:
    """Where rank 0 is to serve the job's store for ranks that can meet on this host only; "" is
    MASTER_ADDR and MASTER_PORT. ConfigError if a launcher has left them no place to meet.
    """
    if step := _step(environ):
        is_open = "MASTER_ADDR" in environ or len(step.tasks) > 1
        return "" if is_open else _here(_attempt(step, environ))
    one_node = completed(environ).get("GROUP_WORLD_SIZE", "1") == "1"
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        if one_node:
            restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            return _here(f"torchrun-{environ.get('MASTER_PORT')}-{restarts}")
        raise ConfigError(
            "torchrun keeps MASTER_PORT for a store of its own. On several nodes start the job "
            "with torshrun, or give init_method='tcp://HOST:PORT': a free port of rank 0's host"
        )
    names = _mpiexec(environ)
    if names is None or "MASTER_ADDR" in environ:
        return ""
    if one_node:
        return _here(f"mpiexec-{launcher_process(names.rank)}")
    raise ConfigError(
        "mpiexec has started ranks on several hosts and does not say where they can meet: set "
        "MASTER_ADDR to rank 0's host and MASTER_PORT to a free port there, for all ranks "
        "(mpiexec -x NAME=VALUE, or -genv NAME VALUE)"
    )


def _mpiexec(environ: Environ) -> _Variables | None:
    """What mpiexec has said, if that counts: of several the one that tells what is local. srun sets
    PMI_RANK too, but says in variables of its own what is local.
    """
    if "RANK" in environ:
        return None
    given = [names for names in _MPIEXEC if names.rank in environ and names.world_size in environ]
    telling = [names for names in given if names.local_rank in environ]
    found = next(iter(telling or given), None)
    if found is None or (telling and found is not _PALS):
        return found
    return None if slurm.step(environ) else found


def _attempt(step: slurm.Step, environ: Environ) -> str:
    return f"{step.name}-{environ.get('SLURM_RESTART_COUNT', '0')}"


def _here(name: str) -> str:
    return f"unix:@torsh-{os.getuid()}-{name}"


def launcher_process(variable: str) -> str:
    """The nearest ancestor for which the variable is not set, and since when it runs: the same for
    all ranks of this host, also if each of them was started through a script.
    """
    pid = os.getppid()
    while f"\0{variable}=" in "\0" + _read(pid, "environ"):
        pid = int(_status(pid)[1])
    return "-".join([str(pid), *_status(pid)[19:20]])


def _status(pid: int) -> list[str]:
    """What /proc/<pid>/stat has after the name: the state, the parent and so on."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:  # another user's, or it has ended
        return ""
