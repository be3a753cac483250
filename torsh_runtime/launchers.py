"""Places in a job as given by launchers other than torshrun: torchrun, Slurm and mpiexec."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torsh_runtime import slurm
from torsh_runtime.errors import ConfigError

Environ = Mapping[str, str]


class _Variables(NamedTuple):
    """Names the variables in which a launcher gives a process its place."""

    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


_PALS = _Variables("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")
"""Variables of HPE Cray's mpiexec."""
_FLUX = _Variables("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "")
_MPIEXEC = (
    _Variables(
        *(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    ),
    _Variables("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _PALS,
    _FLUX,
)
"""Variables of Open MPI; of MPICH and its derivatives, such as Intel MPI; and of others that count
as mpiexec.
"""


def completed(environ: Environ) -> Environ:
    """Return `environ` with the place() that mpiexec or srun gives, and rank 0's address if srun
    gives it.

    Raises ConfigError if Slurm's variables contradict each other.
    """
    return {**environ, **place(environ), **_master(environ)}


def place(environ: Environ) -> dict[str, str]:
    """Return RANK and the related variables as mpiexec or srun gives them.

    Returns {} if neither has started this process as one of several, or RANK is set. Raises
    ConfigError if Slurm's variables contradict each other.
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
        "GROUP_WORLD_SIZE": "1" if local_size == world_size else "2",  # or more, which is not known
    }


def _local_size(names: _Variables, environ: Environ) -> str:
    """Return the number of ranks on this host; "0" if it is unknown."""
    world_size = environ[names.world_size]
    if world_size == "1" or (names is _FLUX and environ.get("FLUX_JOB_NNODES") == "1"):
        return world_size
    return environ.get(names.local_world_size, "0")


def _step(environ: Environ) -> slurm.Step | None:
    """Return the step that srun has started with a task for each rank, if it decides the place."""
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
    """Return the endpoint at which rank 0 serves the job's store, if all ranks are on this host.

    Returns "" for MASTER_ADDR and MASTER_PORT. Raises ConfigError if the launcher leaves the ranks
    no endpoint to connect through.
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
    """Return the variables that mpiexec has set, if they decide the place; otherwise None.

    Prefers those that include the local rank. srun sets PMI_RANK too, but gives the local rank in
    variables of its own.
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
    """Return the id and the start time of the nearest ancestor that does not have the variable.

    The result is equal for all ranks of this host, even if a script has started each of them.
    """
    pid = os.getppid()
    while f"\0{variable}=" in "\0" + _read(pid, "environ"):
        pid = int(_status(pid)[1])
    return "-".join([str(pid), *_status(pid)[19:20]])


def _status(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the name: the state, the parent and so on."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:  # the process is another user's, or has ended
        return ""
