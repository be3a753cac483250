"""Where a group's ranks run, and which of them share a node."""

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

from torsh_runtime.errors import CommError, ConfigError

TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings that ranks must have in common, by name."""

    everywhere: Mapping[str, int | str] = field(default_factory=dict)
    """Those of all ranks."""
    in_node: Mapping[str, int | str] = field(default_factory=dict)
    """Those of the ranks of a node."""

    def check(self) -> None:
        """TypeError unless these are names and settings."""
        for name, value in (*self.everywhere.items(), *self.in_node.items()):
            if not (isinstance(name, str) and isinstance(value, int | str)):
                raise TypeError


class Node(NamedTuple):
    """What processes have in common that can share memory and watch each other.

    Two "hosts" in network namespaces of one machine are two nodes, and so are two containers.
    """

    machine: str
    """The kernel's boot id."""
    pid_namespace: str
    network: str
    """The network namespace."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a rank tells the others about itself."""

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
    """What has to be known there; TOKEN_BYTES of them."""
    terms: Terms

    @classmethod
    def here(cls, offer: str, token: bytes, terms: Terms) -> Place:
        """This process's."""
        here = node_here()
        return cls(
            pid=os.getpid(),
            machine=here.machine,
            pid_namespace=here.pid_namespace,
            network=here.network,
            host=socket.gethostname(),
            offer=offer,
            token=token,
            terms=terms,
        )

    @property
    def node(self) -> Node:
        return Node(self.machine, self.pid_namespace, self.network)

    def pack(self) -> bytes:
        """As bytes, for the store."""
        packed: bytes = msgpack.packb(asdict(self))
        return packed

    @classmethod
    def unpack(cls, rank: int, data: bytes) -> Place:
        """The counterpart of pack. CommError if rank wrote something else."""
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
        """TypeError or ValueError unless each field is what it is declared to be."""
        texts = (self.machine, self.pid_namespace, self.network, self.host, self.offer)
        if not all(isinstance(text, str) for text in texts) or "\0" in self.offer:
            raise TypeError
        if type(self.pid) is not int or not 0 < self.pid < 1 << 31:
            raise ValueError
        if not isinstance(self.token, bytes) or len(self.token) != TOKEN_BYTES:
            raise ValueError
        self.terms.check()


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def node_here() -> Node:
    """This process's node."""
    network, processes = (Path(f"/proc/self/ns/{kind}") for kind in ("net", "pid"))
    return Node(_boot_id(), str(processes.readlink()), str(network.readlink()))


def layout(places: Mapping[int, Place]) -> list[list[int]]:
    """The ranks of each node, ascending; nodes in the order of their first ranks."""
    nodes: dict[Node, list[int]] = {}
    for rank, place in sorted(places.items(), key=itemgetter(0)):
        nodes.setdefault(place.node, []).append(rank)
    return list(nodes.values())


def check_terms(places: Mapping[int, Place]) -> None:
    """ConfigError, the same on all ranks, naming two that do not have the same settings."""
    firsts: dict[Node, int] = {}
    for rank, place in sorted(places.items(), key=itemgetter(0)):
        first, of_node = min(places), firsts.setdefault(place.node, rank)
        _compare(first, places[first].terms.everywhere, rank, place.terms.everywhere)
        _compare(of_node, places[of_node].terms.in_node, rank, place.terms.in_node)


def _compare(
    first: int, ones: Mapping[str, int | str], second: int, others: Mapping[str, int | str]
) -> None:
    differing = [name for name in {**ones, **others} if ones.get(name) != others.get(name)]
    if not differing:
        return
    accounts = "; ".join(
        f"{name} is {ones.get(name, 'not given')} on rank {first} and "
        f"{others.get(name, 'not given')} on rank {second}"
        for name in differing
    )
    raise ConfigError(
        f"ranks {first} and {second} have different settings: {accounts}. Give all ranks the same "
        f"environment and the same tuning file."
    )
