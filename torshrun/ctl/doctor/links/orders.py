"""What one doctor asks of another: an order in a frame, over a connection on which both have proved
that they know the secret; then the answer, or bytes. One order for each connection.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import metadata
from typing import Any, NamedTuple, TypeVar, get_type_hints

from torsh_runtime.errors import StoreError
from torsh_runtime.store import wire
from torsh_runtime.store.channel import Channel
from torsh_runtime.store.endpoint import TcpEndpoint
from torsh_runtime.store.keys import derive
from torshrun.config.job import Address
from torshrun.ctl.doctor.links import streams

A = TypeVar("A")

CONNECT_SECONDS = 5.0
"""For the connection, the handshake and short answers."""
STREAM_SECONDS = 10.0
"""For pings, and for a stream in one direction."""
MEASURE_SECONDS = 3 * (CONNECT_SECONDS + STREAM_SECONDS)
"""For a measurement between two others."""
CHECK_SECONDS = 90.0
"""For an all_reduce by two agents."""


_STRANGE = "what answers there is no doctor of this version"


class LinkError(Exception):
    """Another doctor could not be reached, or did not do what it was asked; says why."""


class Measured(NamedTuple):
    """A connection between two nodes, as one of them sees it."""

    latency: float
    """Seconds for a round trip, the median."""
    out_rate: float
    """Bytes a second to the other node."""
    in_rate: float
    """And from it."""


class Rate(NamedTuple):
    rate: float
    """Bytes a second."""


class Port(NamedTuple):
    number: int
    """A TCP port that is free just now."""


class About(NamedTuple):
    host: str
    torshrun: str
    """Its version."""
    python: str

    @classmethod
    def this_node(cls) -> About:
        return cls(os.uname().nodename, own_version(), platform.python_version())


class Checked(NamedTuple):
    """How one node's part of an all_reduce went."""

    failure: str
    """Why it failed; "" if it did not."""
    latency: float
    """Seconds for an all_reduce of 8 bytes, the median."""
    rate: float
    """Bytes a second of a large one."""


def own_version() -> str:
    """Of torshrun."""
    try:
        return metadata.version("torshrun")
    except metadata.PackageNotFoundError:
        return "not installed"


def doctor_key(secret: str) -> bytes:
    """What doctors prove to each other that they know; b"" without a secret."""
    return derive(secret.encode(), "doctor")


def ask(peer: Address, key: bytes, kind: type[A], seconds: float, *order: Any) -> A:
    """What a peer answers to the order within so many seconds. LinkError."""
    with _connected(peer, key, seconds) as (channel, deadline):
        channel.send(wire.encode(list(order)), deadline)
        return _shaped(kind, answered(channel, deadline))


def measure(peer: Address, key: bytes) -> Measured:
    """The link to a peer. LinkError."""
    with _streaming(peer, key, "echo") as (channel, deadline):
        latency = streams.ping(channel.sock, deadline)
    with _streaming(peer, key, "give") as (channel, deadline):
        in_rate = streams.drink(channel.sock, deadline)
    with _streaming(peer, key, "take") as (channel, deadline):
        streams.pour(channel.sock, deadline)
        out_rate = _shaped(Rate, answered(channel, deadline)).rate
    return Measured(latency, out_rate, in_rate)


def answered(channel: Channel, deadline: float) -> list[Any]:
    """What the other side answers. StoreError with its reason if it refuses."""
    match wire.decode(channel.receive(deadline)):
        case [True, *answer]:
            return answer
        case [False, str(reason)]:
            raise StoreError(reason)
    raise StoreError(_STRANGE)


@contextmanager
def _streaming(peer: Address, key: bytes, order: str) -> Iterator[tuple[Channel, float]]:
    """A connection over which the peer is ready to carry out such an order."""
    with _connected(peer, key, STREAM_SECONDS) as (channel, deadline):
        channel.send(wire.encode([order]), deadline)
        answered(channel, deadline)
        streams.leave_at_once(channel.sock)
        yield channel, deadline


@contextmanager
def _connected(peer: Address, key: bytes, seconds: float) -> Iterator[tuple[Channel, float]]:
    """A new connection, and the deadline. LinkError for whatever fails there."""
    try:
        endpoint = TcpEndpoint(*peer)
        with closing(Channel.open(endpoint, key, time.monotonic() + CONNECT_SECONDS)) as channel:
            yield channel, time.monotonic() + seconds
    except (OSError, EOFError, StoreError) as error:
        raise LinkError(_told(error)) from None


def _shaped(kind: type[A], answer: Sequence[Any]) -> A:
    """The answer as what it should be. StoreError if it is something else."""
    wanted = list(get_type_hints(kind).values())
    if len(answer) != len(wanted) or not all(map(isinstance, answer, wanted)):
        raise StoreError(_STRANGE)
    return kind(*answer)


def _told(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not isinstance(error, StoreError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
