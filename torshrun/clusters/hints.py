"""Defines what is known of a job from the scheduler or launcher that started this torshrun."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import NamedTuple, Protocol

from torsh_runtime.slurm import Reply

PLACE = ("nnodes", "node_rank", "master_addr", "master_port")
"""The options that together give the job's nodes, the rank of this one, and where they rendezvous.
"""
NUMBER = re.compile("[0-9]{1,9}")
"""The pattern of variables with a number. Variables with other values are ignored."""
GRACE_MARGIN = 5.0
"""Seconds by which workers are killed before the scheduler would kill torshrun."""
_WORKERS = ("TORSH_STORE_ENDPOINT", "TORCHELASTIC_RUN_ID")
"""Variables of workers: the first is set by torshrun, the second by torchrun and torshrun."""


Environ = Mapping[str, str]


def in_worker(environ: Environ) -> bool:
    """Return whether a worker of another launcher has called this torshrun.

    Then this torshrun belongs to that worker, and is no node of the job around it.
    """
    return any(name in environ for name in _WORKERS)


class Hint(NamedTuple):
    """Holds the value of an option that applies unless the user gives another one."""

    text: str
    """The value as on the command line."""
    source: str
    """The variable or command that it comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Holds what was found.

    Fields that are Hints are the values of the options of the same name.
    """

    cluster: str
    """The source: "slurm", "pbs", "lsf", "mpi", "skypilot", "dstack" or "kubernetes"."""
    found: tuple[str, ...]
    """Short descriptions for people."""
    nnodes: Hint | None = None
    node_rank: Hint | None = None
    master_addr: Hint | None = None
    """The host of node rank 0, whose agent serves the store where the nodes rendezvous."""
    master_port: Hint | None = None
    rdzv_backend: Hint | None = None
    rdzv_endpoint: Hint | None = None
    """An endpoint instead of a rank and a master, if the user lets the number of nodes vary."""
    nproc_per_node: Hint | None = None
    run_id: Hint | None = None
    """The run id. It stays the same if the scheduler requeues the job."""
    shutdown_timeout: Hint | None = None
    """The scheduler's time between SIGTERM and SIGKILL, less GRACE_MARGIN."""
    time_limit: Hint | None = None
    """Seconds from now on until the allocation ends."""
    secret_file: Hint | None = None
    """The file from which the job's secret is derived."""
    shares_home: bool = True
    """True if this user's home directory is the same on all nodes, as on most clusters."""
    no_secret: str = ""
    """The reason why there is no secret, although nodes rendezvous and none was given."""
    mistake: str = ""
    """The reason why the nodes that were found cannot form a job, and what to do."""
    signals_reach_workers: bool = False
    """True if the scheduler signals all processes of the job, not torshrun alone."""
    requeues: str = ""
    """The name of the job in Slurm's commands, on the node that may ask for its requeue. Elsewhere
    empty.
    """

    @property
    def options(self) -> Mapping[str, Hint]:
        """Return the hints of options, by the keys of the options."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return MappingProxyType(
            {name: value for name, value in values.items() if isinstance(value, Hint)}
        )


class Machine(Protocol):
    """Answers what the environment does not tell. Each call takes a bounded time."""

    def scontrol(self, *words: str) -> Reply:
        """Return the answer of Slurm's scontrol."""

    def read(self, path: str) -> str:
        """Return the content of a file, or "" if it cannot be read.

        Raises ConfigError if it is absurdly long.
        """

    def launcher(self, variable: str) -> str:
        """Name the process on this host that has set the variable for its children."""

    def now(self) -> float:
        """Return the seconds since 1970."""


class Cluster(Protocol):
    """Describes a scheduler or launcher. Modules of this package implement it."""

    def allocation(self, environ: Environ, machine: Machine) -> Hints | None:
        """Return what holds for any torshrun inside the job, or None if there is no job."""

    def place(self, hints: Hints, environ: Environ, machine: Machine) -> Hints:
        """Return the hints with the job's nodes, if it has several and this is one of them.

        Raises ConfigError if the variables in the environment are invalid.
        """
