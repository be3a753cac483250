"""Detects which scheduler or launcher started this torshrun, and reads its hints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from torsh_runtime import slurm as slurm_runtime
from torsh_runtime.errors import ConfigError
from torsh_runtime.launchers import launcher_process
from torsh_runtime.slurm import Reply
from torshrun.clusters import kubernetes, lsf, mpi, pbs, slurm
from torshrun.clusters.hints import Cluster, Environ, Hint, Hints, Machine, in_worker
from torshrun.clusters.orchestrators import DSTACK, SKYPILOT
from torshrun.clusters.user_key import make_user_key
from torshrun.procfs import read_text

_ORCHESTRATORS: Mapping[str, Cluster] = MappingProxyType({"skypilot": SKYPILOT, "dstack": DSTACK})
"""Orchestrators that also start pods of Kubernetes and jobs of Slurm. Their variables tell more
then.
"""
_CLUSTERS: Mapping[str, Cluster] = MappingProxyType(
    {
        **_ORCHESTRATORS,
        "slurm": slurm,
        "pbs": pbs,
        "lsf": lsf,
        "mpi": mpi,
        "kubernetes": kubernetes,
    }
)
"""The clusters in the order in which they are looked for.

The nodes of mpiexec go first, as it may have been started by a scheduler whose variables its
processes inherit.
"""
_LONGEST_LIST = 64 << 20
"""The most bytes of a file that lists a job's hosts, once for each process."""


def detect(kind: str, environ: Environ, machine: Machine) -> Hints | None:
    """Return the hints of the cluster around this process, or None.

    `kind` is "auto", "none", or the one cluster to look for. Raises ConfigError if that is not
    found, or if its variables are invalid.
    """
    if kind == "none" or (kind == "auto" and in_worker(environ)):
        return None
    by_mpi = kind == "auto" and mpi.allocation(environ, machine) is not None
    for name in _CLUSTERS if kind == "auto" else [kind]:
        if by_mpi and name in _ORCHESTRATORS:
            continue  # processes that mpiexec starts on other hosts lack these variables
        hints = _CLUSTERS[name].allocation(environ, machine)
        if hints is not None:
            return (mpi if by_mpi else _CLUSTERS[name]).place(hints, environ, machine)
    if kind != "auto":
        raise ConfigError(f"--scheduler {kind}: the environment has none of its variables")
    return None


def with_secret(hints: Hints, environ: Environ) -> Hints:
    """Add the path of this user's key for jobs of several nodes without a secret.

    That needs a home directory that the nodes share. If the key cannot be created, the reason is
    added instead.
    """
    if hints.nnodes is None or not hints.shares_home or "TORSH_SECRET" in environ:
        return hints
    try:
        path = make_user_key(environ)
    except OSError as error:
        why = f"{error.filename or 'a key'}: {error.strerror or error}"
        return replace(hints, no_secret=why)
    return replace(hints, secret_file=Hint(path, "this user's key"))


_TOO_LONG = 5.0
"""Seconds without an answer after which Slurm's controller is considered unreachable."""


class RealMachine:
    """Accesses the machine that this process runs on."""

    def __init__(self) -> None:
        self._has_scontrol = True

    def scontrol(self, *words: str) -> Reply:
        """Call scontrol, unless an earlier call took too long."""
        if not self._has_scontrol:
            return Reply("", "Slurm's controller is out of reach")
        began = time.monotonic()
        reply = slurm_runtime.scontrol(*words)
        self._has_scontrol = not reply.error or time.monotonic() - began < _TOO_LONG
        return reply

    def read(self, path: str) -> str:
        text = read_text(path, _LONGEST_LIST + 1)
        if len(text) > _LONGEST_LIST:
            raise ConfigError(
                f"{path} has more than {_LONGEST_LIST >> 20} MiB: it is not a list of hosts"
            )
        return text

    def now(self) -> float:
        return time.time()

    def launcher(self, variable: str) -> str:
        return launcher_process(variable)
