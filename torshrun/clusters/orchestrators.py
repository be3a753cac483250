"""Reads hints of SkyPilot and dstack.

Both run the same commands on each node, and describe the nodes by variables of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from torsh_runtime import slurm
from torsh_runtime.errors import ConfigError
from torshrun.clusters.hints import GRACE_MARGIN, NUMBER, Environ, Hint, Hints, Machine

_GPUS = re.compile("[1-9][0-9]{0,3}")
_JOB = re.compile(r"[A-Za-z0-9_.:@+-]{1,200}")
_HOST = re.compile(r"[A-Za-z0-9_.:%-]{1,253}")
_LONGEST = 200
"""The most characters of a variable that an error shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orchestrator:
    """Implements Cluster for an orchestrator, given the names of its variables."""

    cluster: str
    """The value of --scheduler."""
    title: str
    """The name that its users know."""
    rank: str
    """The variable with this node's rank, which is set in every job."""
    count: str
    addresses: str
    """The variable with the addresses of all nodes, in the order of their ranks."""
    master: str
    """The variable with the address of node rank 0. Empty if that is the first address."""
    gpus: str
    job: str
    """The variable that names the job. The name stays the same when the job is run again."""
    prefix: str
    """The prefix of that name in the run id."""
    kill_delay: float | None
    """Seconds between the signal that stops a job and SIGKILL. None is unknown."""

    def allocation(self, environ: Environ, machine: Machine) -> Hints | None:
        if self.rank not in environ:
            return None
        job, gpus = environ.get(self.job, ""), environ.get(self.gpus, "")
        is_named = bool(_JOB.fullmatch(job))
        return Hints(
            cluster=self.cluster,
            found=(f"job {job}" if is_named else "a job",),
            nproc_per_node=Hint(gpus, self.gpus) if _GPUS.fullmatch(gpus) else None,
            run_id=Hint(f"{self.prefix}{job}", self.job) if is_named else None,
            shutdown_timeout=self._grace(),
            shares_home=False,
        )

    def _grace(self) -> Hint | None:
        if self.kill_delay is None:
            return None
        seconds = f"{self.kill_delay - GRACE_MARGIN:g}"
        return Hint(seconds, f"{self.title}'s delay before SIGKILL, {self.kill_delay:g} s")

    def place(self, hints: Hints, environ: Environ, machine: Machine) -> Hints:
        """Add the nodes.

        Raises ConfigError if the variables are not what the orchestrator sets, or contradict each
        other.
        """
        rank, addresses = self._number(environ, self.rank), self._addresses(environ)
        count = self._number(environ, self.count) if self.count in environ else len(addresses)
        master = self._master(environ, addresses)
        if not rank < count or (addresses and len(addresses) != count):
            raise self._refused(
                environ,
                (self.rank, self.count, self.addresses),
                "they contradict each other: has somebody changed or inherited some of them?",
            )
        if count == 1:
            return replace(hints, found=(*hints.found, "one node"))
        if not master:
            names = (self.master or self.addresses,)
            raise self._refused(
                environ, names, f"it does not say where the {count} nodes rendezvous"
            )
        name = hints.run_id.text if hints.run_id else " ".join(addresses) or master
        return replace(
            hints,
            found=(*hints.found, f"node {rank} of {count}"),
            nnodes=Hint(str(count), self.count if self.count in environ else self.addresses),
            node_rank=Hint(str(rank), self.rank),
            master_addr=Hint(master, self.master or self.addresses),
            master_port=Hint(str(slurm.port(name)), self.job),
        )

    def _number(self, environ: Environ, name: str) -> int:
        if not NUMBER.fullmatch(environ.get(name, "")):
            raise self._refused(environ, (name,), f"that is not a number, which {self.title} sets")
        return int(environ[name])

    def _addresses(self, environ: Environ) -> list[str]:
        found = environ.get(self.addresses, "").split()
        if not all(map(_HOST.fullmatch, found)):
            raise self._refused(environ, (self.addresses,), "that is not a list of addresses")
        return found

    def _master(self, environ: Environ, addresses: list[str]) -> str:
        if not self.master:
            return addresses[0] if addresses else ""
        master = environ.get(self.master, "")
        if master and not _HOST.fullmatch(master):
            raise self._refused(environ, (self.master,), "that is not an address")
        if master and addresses and master not in addresses:
            names = (self.master, self.addresses)
            raise self._refused(environ, names, "the first node is not one of the nodes")
        return master

    def _refused(self, environ: Environ, names: tuple[str, ...], why: str) -> ConfigError:
        told = ", ".join(f"{name}={environ.get(name, '')[:_LONGEST]!r}" for name in names)
        way_out = "--scheduler none ignores these variables"
        return ConfigError(f"{self.title}'s variables are invalid: {told}: {why} ({way_out})")


SKYPILOT = Orchestrator(
    cluster="skypilot",
    title="SkyPilot",
    rank="SKYPILOT_NODE_RANK",
    count="SKYPILOT_NUM_NODES",
    addresses="SKYPILOT_NODE_IPS",
    master="",
    gpus="SKYPILOT_NUM_GPUS_PER_NODE",
    job="SKYPILOT_TASK_ID",
    prefix="",  # the identifier begins with sky-
    kill_delay=None,
)
DSTACK = Orchestrator(
    cluster="dstack",
    title="dstack",
    rank="DSTACK_NODE_RANK",
    count="DSTACK_NODES_NUM",
    addresses="DSTACK_NODES_IPS",
    master="DSTACK_MASTER_NODE_IP",
    gpus="DSTACK_GPUS_PER_NODE",
    job="DSTACK_RUN_NAME",
    prefix="dstack-",
    kill_delay=10.0,
)
