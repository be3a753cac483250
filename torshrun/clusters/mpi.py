"""Reads hints of mpiexec: each process that it starts is a node.

That is mpiexec of Open MPI, of MPICH (Hydra) and its derivatives such as Intel MPI, and of HPE Cray
(PALS).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torsh_runtime import slurm
from torshrun.clusters import lsf, pbs
from torshrun.clusters.hints import Environ, Hint, Hints, Machine


class _Names(NamedTuple):
    """Names variables that only mpiexec sets, and not srun's PMI."""

    library: str
    rank: str
    size: str
    local_size: str


_LIBRARIES = (
    _Names("Open MPI", *(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_SIZE"))),
    _Names("MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
)
_CRAY = _Names("Cray's mpiexec", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_SIZE")
"""The variables of Cray's mpiexec. Slurm's srun may set them on Cray's machines, too."""


def allocation(environ: Environ, machine: Machine) -> Hints | None:
    return Hints(cluster="mpi", found=()) if _names(environ) else None


def place(hints: Hints, environ: Environ, machine: Machine) -> Hints:
    """Add the nodes of mpiexec. `hints` may be those of the scheduler whose nodes it uses."""
    names = _names(environ)
    if names is None:
        return hints
    rank, size = environ[names.rank], environ[names.size]
    if size == "1":
        return replace(hints, found=(*hints.found, f"{names.library}: one node"))
    host, job = _first_host(names, environ, machine)
    told = f"{names.library}: node {rank} of {size}"
    port = Hint(str(slurm.port(job)), host.source) if host else None
    return replace(
        hints,
        found=(*hints.found, told),
        nnodes=Hint(size, names.size),
        node_rank=Hint(rank, names.rank),
        master_addr=host,
        master_port=port,
    )


def _names(environ: Environ) -> _Names | None:
    libraries = _LIBRARIES if "SLURM_STEP_NUM_NODES" in environ else (*_LIBRARIES, _CRAY)
    given = (
        names for names in libraries if all(environ.get(name, "").isdecimal() for name in names[1:])
    )
    return next(given, None)


def _first_host(names: _Names, environ: Environ, machine: Machine) -> tuple[Hint | None, str]:
    """Return the host of rank 0, and a name for the job.

    That is this host if all ranks are here. Otherwise it is the scheduler's first host, where
    mpiexec puts rank 0 unless it is told otherwise.
    """
    if environ[names.local_size] == environ[names.size]:
        return Hint("127.0.0.1", names.local_size), f"mpi-{machine.launcher(names.rank)}"
    if environ.get("SLURM_JOB_NODELIST"):
        host = slurm.first_host(environ["SLURM_JOB_NODELIST"], machine.scontrol)
        return Hint(host, "SLURM_JOB_NODELIST"), f"slurm-{environ.get('SLURM_JOB_ID')}"
    if nodes := pbs.hosts(environ, machine):
        return Hint(nodes[0], "PBS_NODEFILE"), f"pbs-{environ.get('PBS_JOBID')}"
    if first := lsf.first_host(environ, machine):
        return Hint(first, "LSB_MCPU_HOSTS"), lsf.run_id(environ)
    return None, ""
