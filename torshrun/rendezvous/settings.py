"""Defines what a node brings to the rendezvous, and the rules that all nodes share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torshrun.config.job import Timeouts

GRANT = 0.9
"""Part of the ttl for which a sign of life that was answered lets workers run: they are to end
before others count on it, though clocks run differently and killing takes its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Timeouts):
    """The job's rules; where nodes differ the first leader's hold, but see misfit()."""

    run_id: str
    """Names the job. Keys are under "torsh/<run id>/", with the id quoted as in a URL."""
    min_nodes: int
    max_nodes: int
    max_restarts: int = 0
    """Number of times that all workers may be restarted after a failure, in the whole job."""
    restart_backoff: float = 1.0
    """Seconds before the second restart in a row; see restart.pause."""
    outage_timeout: float = 180.0
    """Seconds that a round may go on without the store while its nodes hear each other."""
    fixed_ranks: bool = False
    """True if every node brings its node rank."""

    @property
    def interval(self) -> float:
        """Return the seconds between heartbeats."""
        return self.ttl / 4

    @property
    def rush(self) -> float:
        """Return the seconds over which the nodes spread what all of them are to do at once."""
        return min(0.0003 * self.max_nodes, self.interval / 4)

    @property
    def verdict_ttl(self) -> float:
        """Return the seconds for which the store keeps its records after the job has ended."""
        return max(1.0, self.close_timeout)


class Shared(Protocol):
    """Defines what must be equal on all nodes, or some misjudge when others' workers end, or
    whether they are replaced."""

    @property
    def ttl(self) -> float: ...
    @property
    def outage_timeout(self) -> float: ...
    @property
    def max_restarts(self) -> int: ...


def misfit(ours: Shared, theirs: Shared) -> str:
    """Return how nodes with these settings disagree, from the view of `ours`; "" if they agree."""
    for name in ("ttl", "outage_timeout"):
        own, other = getattr(ours, name), getattr(theirs, name)
        if own != other:
            return (
                f"{name} is {own:g} here and {other:g} on the other nodes: give all the same "
                f"--rdzv-conf"
            )
    if ours.max_restarts != theirs.max_restarts:
        return (
            f"--max-restarts is {ours.max_restarts} here and {theirs.max_restarts} on the other "
            f"nodes: give all the same"
        )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Describes this node to the others."""

    node: str
    """Id of the node: unique in the job, and new for each agent's life."""
    host: str
    """Name of the host, for people."""
    address: str
    """Address at which other nodes reach it: the master address if it has node rank 0."""
    endpoint: str
    """Endpoint where its agent serves the round's store and takes heartbeats, "tcp:host:port"."""
    nproc: int
    """Workers, at least 1."""
    role: str = ""
    """Role of these workers: ROLE_RANK counts those of the same role."""
    fixed_rank: int = -1
    """The node rank that it insists on; -1: none."""
    ports: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """Two ports free now at the address, for MASTER_PORT and JAX; asked anew for each round."""
