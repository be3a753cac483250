"""RendezvousConfig: how the nodes of one job find each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Backend = Literal["static", "tcp", "etcd"]


class Address(NamedTuple):
    """Where something listens."""

    host: str
    """A name or an address, IPv6 without brackets."""
    port: int
    """1 to 65535."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What etcd asks for."""

    tls: bool = False
    """Whether it is spoken to over TLS."""
    cacert: str = ""
    """File with the authorities that it is believed by; "" is the system's."""
    cert: str = ""
    """File with this side's certificate; "" is none."""
    key: str = ""
    """File with that certificate's key."""
    user: str = ""
    """Name to log in with; "" is not at all."""
    password: str = field(default="", repr=False)
    """That user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousConfig:
    """How the nodes of one job find each other. Times are in seconds."""

    backend: Backend
    """static: one agent, node rank 0's, serves the store, and nodes have fixed ranks; tcp: the
    agent whose host the endpoint names serves it; etcd: it is etcd's."""
    endpoints: tuple[Address, ...]
    """Where the store is; only etcd has more than one."""
    node_rank: int | None = None
    """This node's rank; None lets the rendezvous choose."""
    is_host: bool | None = None
    """Whether this node serves the store; None: if the endpoint is an address of its host."""
    local_addr: str = ""
    """Where other nodes reach this one; "" is the address on the way to the endpoint."""
    join_timeout: float = 600.0
    """How long to wait for the least number of nodes."""
    last_call_timeout: float = 30.0
    """How long to wait for more, once there are enough."""
    close_timeout: float = 30.0
    """How long the verdict can be read after the job's end; then its name is free again."""
    ttl: float = 15.0
    """How long after its last sign of life a node counts as lost."""
    access: Access = Access()
    """What etcd asks for."""
    secret: str = field(default="", repr=False)
    """What agents prove to each other that they know; "" lets the first one make it up and the
    store hand it on."""
