"""Tells where a group's ranks run, and which of them share a node."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import msgpack

from torsh_runtime.errors import CommError, disagreement

TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings that ranks must have in common, by name."""

    everywhere: Mapping[str, int | str] = field(default_factory=dict)
    """Settings that all ranks must have in common."""
    in_node: Mapping[str, int | str] = field(default_factory=dict)
    """Settings that the ranks of a node must have in common."""

    def check(self) -> None:
        """Raise TypeError unless these are names and settings."""
        for name, value in (*self.everywhere.items(), *self.in_node.items()):
            if not (isinstance(name, str) and isinstance(value, int | str)):
                raise TypeError


class Node(NamedTuple):
    """Identifies processes that can share memory and watch each other.

    Two "hosts" in network namespaces of one machine are two nodes, and so are two containers.
    """

    machine: str
    """The kernel's boot id."""
    pid_namespace: str
    network: str
    """The network namespace."""


@dataclass(frozen=True, slots=True)
class HostInfo:
    """Describes a rank to the others."""

    pid: int
    """In its PID namespace."""
    machine: str
    pid_namespace: str
    network: str
    host: str
    """The host's name, for people."""
    offer: str
    """Name of the abstract socket where it would hand out the node's segment."""
    token: bytes
    """The secret to present at that socket, of TOKEN_BYTES bytes."""
    terms: Terms
    job: str = ""
    """The launched job that it is a rank of; "" if there is none."""
    number: int = -1
    """The rank in that job, which groups may number differently; -1 if there is none."""

    @classmethod
    def here(cls, offer: str, token: bytes, terms: Terms) -> HostInfo:
        """Return this process's information."""
        here, (job, number) = node_here(), launched()
        return cls(
            pid=os.getpid(),
            machine=here.machine,
            pid_namespace=here.pid_namespace,
            network=here.network,
            host=socket.gethostname(),
            offer=offer,
            token=token,
            terms=terms,
            job=job,
            number=number,
        )

    @property
    def node(self) -> Node:
        return Node(self.machine, self.pid_namespace, self.network)

    def pack(self) -> bytes:
        """Return the information as bytes, for the store."""
        packed: bytes = msgpack.packb(asdict(self))
        return packed

    @classmethod
    def unpack(cls, rank: int, data: bytes) -> HostInfo:
        """Decode the output of pack. Raises CommError if the rank wrote something else."""
        try:
            facts = msgpack.unpackb(data)
            place = cls(**{**facts, "terms": Terms(**facts["terms"])})
            place._check()
            return place
        except (TypeError, ValueError, KeyError, AttributeError, msgpack.UnpackException):
            raise CommError(
                f"rank {rank} introduced itself with words that this rank does not understand. "
                f"Install the same version of torsh_runtime on all nodes."
            ) from None

    def _check(self) -> None:
        """Raise TypeError or ValueError unless each field is what it is declared to be."""
        texts = (self.machine, self.pid_namespace, self.network, self.host, self.offer, self.job)
        if not all(isinstance(text, str) for text in texts) or "\0" in self.offer:
            raise TypeError
        if type(self.pid) is not int or not 0 < self.pid < 1 << 31:
            raise ValueError
        if type(self.number) is not int or not -1 <= self.number < 1 << 31:
            raise ValueError
        if not isinstance(self.token, bytes) or len(self.token) != TOKEN_BYTES:
            raise ValueError
        self.terms.check()


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def node_here() -> Node:
    """Return this process's node."""
    network, processes = (Path(f"/proc/self/ns/{kind}") for kind in ("net", "pid"))
    return Node(_boot_id(), str(processes.readlink()), str(network.readlink()))


def launched() -> tuple[str, int]:
    """Return the job that this process was launched in and its rank there, or ("", -1)."""
    run, rank = os.environ.get("TORCHELASTIC_RUN_ID", ""), os.environ.get("RANK", "")
    number = int(rank) if rank.isascii() and rank.isdecimal() and len(rank) < 9 else -1
    return (f"{run}/{os.environ.get('TORSH_ROUND', '')}", number) if number >= 0 else ("", -1)


def numbers(own: HostInfo, places: Mapping[int, HostInfo]) -> list[int]:
    """Return the ranks of a group as this rank's job numbers them, in their order.

    The number is -1 for a rank of a different job.
    """
    return [
        place.number if place.job == own.job else -1
        for _, place in sorted(places.items(), key=itemgetter(0))
    ]


def layout(places: Mapping[int, HostInfo]) -> list[list[int]]:
    """Return the ranks of each node, ascending, with nodes in the order of their first ranks."""
    nodes: dict[Node, list[int]] = {}
    for rank, place in sorted(places.items(), key=itemgetter(0)):
        nodes.setdefault(place.node, []).append(rank)
    return list(nodes.values())


def check_terms(places: Mapping[int, HostInfo]) -> None:
    """Raise ConfigError, the same on all ranks, naming two ranks whose settings differ."""
    firsts: dict[Node, int] = {}
    for rank, place in sorted(places.items(), key=itemgetter(0)):
        first, of_node = min(places), firsts.setdefault(place.node, rank)
        everywhere = {each: places[each].terms.everywhere for each in places}
        _compare(first, rank, everywhere)
        in_node = {each: it.terms.in_node for each, it in places.items() if it.node == place.node}
        _compare(of_node, rank, in_node)


def _compare(first: int, second: int, terms: Mapping[int, Mapping[str, int | str]]) -> None:
    ones, others = terms[first], terms[second]
    differing = [name for name in {**ones, **others} if ones.get(name) != others.get(name)]
    if not differing:
        return
    accounts = "; ".join(
        f"{name} is {ones.get(name, 'not given')} on rank {first} and "
        f"{others.get(name, 'not given')} on rank {second}"
        for name in differing
    )
    raise disagreement(
        f"ranks {first} and {second} have different settings: {accounts}. Give all ranks the same "
        f"environment and the same tuning file.",
        {
            rank: ", ".join(f"{name}={own.get(name, 'not given')}" for name in differing)
            for rank, own in terms.items()
        },
    )
