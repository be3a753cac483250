"""What one doctor asks of another: an order in a frame, over a connection on which both have proved
that they know the secret; then the answer, or bytes. One order for each connection.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any, NamedTuple

from torsh_runtime.errors import StoreError
from torsh_runtime.store import wire
from torsh_runtime.store.channel import Channel
from torsh_runtime.store.endpoint import TcpEndpoint
from torsh_runtime.store.keys import derive
from torshrun.config.job import Address
from torshrun.ctl.doctor.links import streams

CONNECT_SECONDS = 5.0
"""For the connection, the handshake and short answers."""
STREAM_SECONDS = 10.0
"""For pings, and for a stream in one direction."""
MEASURE_SECONDS = 3 * (CONNECT_SECONDS + STREAM_SECONDS)
"""For a measurement between two others."""
CHECK_SECONDS = 90.0
"""For an all_reduce by two agents."""


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


class About(NamedTuple):
    host: str
    torshrun: str
    """Its version."""
    python: str


class Checked(NamedTuple):
    """How one node's part of an all_reduce went."""

    failure: str
    """Why it failed; "" if it did not."""
    latency: float
    """Seconds for an all_reduce of 8 bytes, the median."""
    rate: float
    """Bytes a second of a large one."""


def doctor_key(secret: str) -> bytes:
    """What doctors prove to each other that they know; b"" without a secret."""
    return derive(secret.encode(), "doctor")


def measure(peer: Address, key: bytes) -> Measured:
    """The link to a peer. LinkError."""
    latency = _raw(peer, key, "echo", streams.ping)
    in_rate = _raw(peer, key, "give", streams.drink)
    out_rate = _raw(peer, key, "take", streams.pour)
    return Measured(float(latency), float(out_rate), float(in_rate))


def ask(peer: Address, key: bytes, seconds: float, *order: Any) -> list[Any]:
    """What a peer answers to the order within so many seconds. LinkError."""
    try:
        with closing(_open(peer, key)) as channel:
            deadline = time.monotonic() + seconds
            channel.send(wire.encode(list(order)), deadline)
            return _answer(channel, deadline)
    except (OSError, EOFError, StoreError) as error:
        raise LinkError(_told(error)) from None


def _raw(peer: Address, key: bytes, order: str, act: Any) -> Any:
    """The outcome of bytes one way: what `act` found, or where it only sends what the peer did."""
    try:
        with closing(_open(peer, key)) as channel:
            deadline = time.monotonic() + STREAM_SECONDS
            channel.send(wire.encode([order]), deadline)
            streams.leave_at_once(channel.socket)
            found = act(channel.socket, deadline)
            return found if found is not None else _answer(channel, deadline)[0]
    except (OSError, EOFError, StoreError) as error:
        raise LinkError(_told(error)) from None


def _open(peer: Address, key: bytes) -> Channel:
    return Channel.open(TcpEndpoint(*peer), key, time.monotonic() + CONNECT_SECONDS)


def _answer(channel: Channel, deadline: float) -> list[Any]:
    match wire.decode(channel.receive(deadline)):
        case [True, *answer]:
            return answer
        case [False, str(reason)]:
            raise StoreError(reason)
    raise StoreError("what answers there is no doctor of this version")


def _told(error: Exception) -> str:
    if isinstance(error, StoreError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
