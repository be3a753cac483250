"""What is known of a job from the scheduler or launcher that started this torshrun."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import NamedTuple, Protocol

from torsh_runtime.slurm import Reply

PLACE = ("nnodes", "node_rank", "master_addr", "master_port")
"""The options that together say which nodes the job has, which one this is, and where they meet."""
NUMBER = re.compile("[0-9]{1,9}")
"""What variables that number something have; what has anything else tells nothing."""
GRACE_MARGIN = 5.0
"""Seconds by which workers are killed before the scheduler would kill torshrun."""
_WORKERS = ("TORSH_STORE_ENDPOINT", "TORCHELASTIC_RUN_ID")
"""Variables of workers of torshrun, and of torchrun and torshrun."""


Environ = Mapping[str, str]


def in_worker(environ: Environ) -> bool:
    """Whether a worker of another launcher has called this torshrun, which then is that one's
    affair, and no node of the job around it.
    """
    return any(name in environ for name in _WORKERS)


class Hint(NamedTuple):
    """The value of an option, unless the user says something else."""

    text: str
    """As it would stand on the command line."""
    source: str
    """What told it: a variable, or a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What was found. Fields that are Hints are the values of the options of the same name."""

    cluster: str
    """Who told it: "slurm", "pbs", "lsf", "mpi", "skypilot", "dstack" or "kubernetes"."""
    found: tuple[str, ...]
    """For people, in a few words each."""
    nnodes: Hint | None = None
    node_rank: Hint | None = None
    master_addr: Hint | None = None
    """Host of node rank 0, whose agent serves the store where all meet."""
    master_port: Hint | None = None
    rdzv_backend: Hint | None = None
    rdzv_endpoint: Hint | None = None
    """Instead of a rank and a master, where the user lets the number of nodes vary."""
    nproc_per_node: Hint | None = None
    run_id: Hint | None = None
    """The same after the scheduler has put the job into its queue again."""
    shutdown_timeout: Hint | None = None
    """What the scheduler leaves between SIGTERM and SIGKILL, less GRACE_MARGIN."""
    time_limit: Hint | None = None
    """Seconds from now on until the allocation ends."""
    secret_file: Hint | None = None
    """What the job's secret is made of."""
    shares_home: bool = True
    """Whether this user's home directory is the same on all nodes, as it is on most clusters."""
    no_secret: str = ""
    """Why there is none, although nodes have to meet and none was given."""
    mistake: str = ""
    """Why the nodes that were found cannot make a job, and what to do."""
    signals_reach_workers: bool = False
    """Whether the scheduler sends its signals to all processes of the job, and not to torshrun
    alone."""
    requeues: str = ""
    """How Slurm's commands name the job, at the node that may ask for its requeue; elsewhere ""."""

    @property
    def options(self) -> Mapping[str, Hint]:
        """All that options are to be, by their keys."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return MappingProxyType(
            {name: value for name, value in values.items() if isinstance(value, Hint)}
        )


class Machine(Protocol):
    """What has to be asked beyond the environment. All is bounded."""

    def scontrol(self, *words: str) -> Reply:
        """What Slurm's scontrol answers."""

    def read(self, path: str) -> str:
        """A file's whole content; "" if it cannot be read. ConfigError if it is absurdly long."""

    def launcher(self, variable: str) -> str:
        """Names the process on this host that has set the variable for those that it started."""

    def now(self) -> float:
        """Seconds since 1970."""


class Cluster(Protocol):
    """A scheduler or launcher: what a module of this package is."""

    def allocation(self, environ: Environ, machine: Machine) -> Hints | None:
        """What holds for any torshrun inside the job; None if there is no job."""

    def place(self, hints: Hints, environ: Environ, machine: Machine) -> Hints:
        """The same with the job's nodes, if it has several and this torshrun is at one of them.
        ConfigError if what the environment says cannot be.
        """
