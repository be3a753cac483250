"""Sends orders from one doctor to another.

An order is a frame on a connection on which both have proved that they know the secret. The answer,
or a stream of bytes, follows. Each connection carries one order.
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
"""Seconds for the connection, the handshake and short answers."""
STREAM_SECONDS = 10.0
"""Seconds for pings, and for a stream in one direction."""
MEASURE_SECONDS = 3 * (CONNECT_SECONDS + STREAM_SECONDS)
"""Seconds for a measurement between two other nodes."""
CHECK_SECONDS = 90.0
"""Seconds for an all_reduce by two agents."""


_STRANGE = "the other side is not a doctor of this version"


class LinkError(Exception):
    """Raised with the reason if a doctor cannot be reached or does not carry out an order."""


class Measured(NamedTuple):
    """Holds the measurement of a connection, as one of its nodes sees it."""

    latency: float
    """Seconds of a round trip, the median."""
    out_rate: float
    """Bytes per second to the other node."""
    in_rate: float
    """Bytes per second from the other node."""


class Rate(NamedTuple):
    rate: float
    """Bytes per second."""


class Port(NamedTuple):
    number: int
    """A TCP port that is free at the moment."""


class About(NamedTuple):
    host: str
    torshrun: str
    """The version of torshrun."""
    python: str

    @classmethod
    def this_node(cls) -> About:
        return cls(os.uname().nodename, own_version(), platform.python_version())


class Checked(NamedTuple):
    """Holds the outcome of one node's part of an all_reduce."""

    failure: str
    """The reason why it failed. Empty if it did not."""
    latency: float
    """Seconds of an all_reduce of 8 bytes, the median."""
    rate: float
    """Bytes per second of a large all_reduce."""


def own_version() -> str:
    """Return the version of torshrun."""
    try:
        return metadata.version("torshrun")
    except metadata.PackageNotFoundError:
        return "not installed"


def doctor_key(secret: str) -> bytes:
    """Return the key that doctors prove to each other to know, or b"" without a secret."""
    return derive(secret.encode(), "doctor")


def ask(peer: Address, key: bytes, kind: type[A], seconds: float, *order: Any) -> A:
    """Send an order to a peer and return its answer within `seconds`. Raises LinkError."""
    with _connected(peer, key, seconds) as (channel, deadline):
        channel.send(wire.encode(list(order)), deadline)
        return _shaped(kind, answered(channel, deadline))


def measure(peer: Address, key: bytes) -> Measured:
    """Measure the link to a peer. Raises LinkError."""
    with _streaming(peer, key, "echo") as (channel, deadline):
        latency = streams.ping(channel.sock, deadline)
    with _streaming(peer, key, "give") as (channel, deadline):
        in_rate = streams.drink(channel.sock, deadline)
    with _streaming(peer, key, "take") as (channel, deadline):
        streams.pour(channel.sock, deadline)
        out_rate = _shaped(Rate, answered(channel, deadline)).rate
    return Measured(latency, out_rate, in_rate)


def answered(channel: Channel, deadline: float) -> list[Any]:
    """Return the answer of the other side. Raises StoreError with its reason if it refuses."""
    match wire.decode(channel.receive(deadline)):
        case [True, *answer]:
            return answer
        case [False, str(reason)]:
            raise StoreError(reason)
    raise StoreError(_STRANGE)


@contextmanager
def _streaming(peer: Address, key: bytes, order: str) -> Iterator[tuple[Channel, float]]:
    """Yield a connection over which the peer is ready to carry out such an order."""
    with _connected(peer, key, STREAM_SECONDS) as (channel, deadline):
        channel.send(wire.encode([order]), deadline)
        answered(channel, deadline)
        streams.leave_at_once(channel.sock)
        yield channel, deadline


@contextmanager
def _connected(peer: Address, key: bytes, seconds: float) -> Iterator[tuple[Channel, float]]:
    """Yield a new connection and the deadline. Raises LinkError for all failures."""
    try:
        endpoint = TcpEndpoint(*peer)
        with closing(Channel.open(endpoint, key, time.monotonic() + CONNECT_SECONDS)) as channel:
            yield channel, time.monotonic() + seconds
    except (OSError, EOFError, StoreError) as error:
        raise LinkError(_told(error)) from None


def _shaped(kind: type[A], answer: Sequence[Any]) -> A:
    """Convert the answer to the type `kind`. Raises StoreError if it does not fit."""
    wanted = list(get_type_hints(kind).values())
    if len(answer) != len(wanted) or not all(map(isinstance, answer, wanted)):
        raise StoreError(_STRANGE)
    return kind(*answer)


def _told(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not isinstance(error, StoreError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
