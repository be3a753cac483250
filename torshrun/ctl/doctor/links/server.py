"""Serves torshctl doctor --serve: carries out other doctors' orders if they know the secret.

Unauthenticated peers are heard as by a store (torsh_runtime/connections): for a few seconds, and
a bounded number of them. An authenticated peer has one order for each connection. A bounded number
of orders is carried out at a time, and each ends by its deadline.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

from torsh_runtime.connections.acceptor import Acceptor
from torsh_runtime.connections.multiplexer import ConnectionMultiplexer, Outcome, Refused
from torsh_runtime.connections.peer import is_private_address
from torsh_runtime.errors import ConfigError, StoreError
from torsh_runtime.store import wire
from torsh_runtime.store.channel import Channel
from torsh_runtime.store.endpoint import TcpEndpoint
from torsh_runtime.store.listener import listen_on
from torsh_runtime.store.refusals import Refusals
from torsh_runtime.store.server import HANDSHAKE_SECONDS, REFUSAL_SECONDS, handshake
from torsh_runtime.store.sockets import tune
from torshrun.config.job import Address
from torshrun.ctl.doctor.links import all_reduce, orders, streams
from torshrun.ctl.doctor.links.orders import LinkError
from torshrun.rendezvous.ports import choose_port

SERVED_SECONDS = 3600.0
"""Seconds after which the server ends, in case it was forgotten."""
_MOST_STRANGERS, _MOST_GUESTS = 64, 32
_PATIENCE = 5.0
"""Seconds for which an order that would disturb a measurement waits for its end."""

Say = Callable[[str], None]


async def serve(host: str, port: int, secret: str, say: Say) -> None:
    """Serve for SERVED_SECONDS. `say` receives the address, and who was turned away.

    Raises ConfigError if the port could be used by everybody who reaches it, and StoreError if it
    cannot be listened on.
    """
    listener, endpoint = await listen_on(str(TcpEndpoint(host, port)))
    if not secret and not is_private_address(listener):
        listener.close()
        raise ConfigError(
            "--serve needs a secret, or anybody who reaches the port could start things here and "
            "fill the network: openssl rand -hex 32, and --secret-file or TORSH_SECRET on all "
            "nodes. Without one it serves 127.0.0.1 alone"
        )
    refusals = Refusals(lambda reason: say(f"turned away: {reason}"), REFUSAL_SECONDS)
    guests = Guests(orders.doctor_key(secret))
    conversations = ConnectionMultiplexer(HANDSHAKE_SECONDS, _MOST_STRANGERS)

    def ended(outcome: Outcome) -> None:
        if isinstance(outcome.error, Refused):
            refusals.note(str(outcome.error))
        if outcome.error is None:
            tune(outcome.sock)
            guests.take(Channel(outcome.sock, outcome.result))

    acceptor = Acceptor(
        listener, conversations, partial(handshake, guests.key), ended, refusals.note
    )
    say(
        f"serves {str(endpoint).removeprefix('tcp:')} for {SERVED_SECONDS / 60:.0f} minutes; "
        f"Ctrl-C ends it"
    )
    try:
        await asyncio.sleep(SERVED_SECONDS)
    finally:
        acceptor.close()
        refusals.close()


class Guests:
    """Carries out the orders of authenticated peers, each in a thread of its own."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._room = threading.Semaphore(_MOST_GUESTS)
        self._measuring = threading.Lock()
        self._orders: dict[str, tuple[Callable[..., tuple[Any, ...]], tuple[type, ...]]] = {
            "about": (orders.About.this_node, ()),
            "port": (lambda: orders.Port(choose_port(0)), ()),
            "measure": (self._measure, (str, int)),
            "all_reduce": (self._all_reduce, (int, str, int, str, bool)),
        }
        """The function of each order, and the types of its arguments."""
        self._streams: dict[str, Callable[[Channel, float], None]] = {
            "echo": lambda channel, deadline: streams.answer_pings(channel.sock, deadline),
            "give": self._give,
            "take": self._take,
        }

    def take(self, channel: Channel) -> None:
        """Carry out the order of a peer, or hang up if too many are being served."""
        if not self._room.acquire(blocking=False):
            channel.close()
            return
        work = partial(self._serve, channel)
        threading.Thread(target=work, name="doctor-guest", daemon=True).start()

    def _serve(self, channel: Channel) -> None:
        try:
            with closing(channel), suppress(OSError, EOFError, StoreError):
                self._carry_out(channel)
        finally:
            self._room.release()

    def _carry_out(self, channel: Channel) -> None:
        deadline = time.monotonic() + orders.CONNECT_SECONDS
        match wire.decode(channel.receive(deadline)):
            case [str(name)] if name in self._streams:
                self._stream(channel, self._streams[name])
            case [str(name), *arguments] if self._understands(name, arguments):
                self._answer(channel, partial(self._orders[name][0], *arguments))
            case _:
                refuse(channel, "this doctor does not know that order: do the versions differ?")

    def _understands(self, name: str, arguments: Sequence[object]) -> bool:
        if name not in self._orders:
            return False
        _, kinds = self._orders[name]
        return len(arguments) == len(kinds) and all(map(isinstance, arguments, kinds))

    def _stream(self, channel: Channel, act: Callable[[Channel, float], None]) -> None:
        if not self._measuring.acquire(timeout=_PATIENCE):
            refuse(channel, "another doctor is measuring there; try again")
            return
        try:
            deadline = time.monotonic() + orders.STREAM_SECONDS
            channel.send(wire.encode([True]), deadline)
            act(channel, deadline)
        finally:
            self._measuring.release()

    def _give(self, channel: Channel, deadline: float) -> None:
        streams.leave_at_once(channel.sock)
        streams.pour(channel.sock, deadline)

    def _take(self, channel: Channel, deadline: float) -> None:
        rate = streams.drink(channel.sock, deadline)
        channel.send(wire.encode([True, rate]), deadline)
        streams.drain(channel.sock, deadline)

    def _answer(self, channel: Channel, act: Callable[[], tuple[Any, ...]]) -> None:
        try:
            frame = wire.encode([True, *act()])
        except (LinkError, ConfigError, OSError, ValueError) as error:  # ValueError: a NUL
            refuse(channel, str(error))
            return
        channel.send(frame, time.monotonic() + orders.CONNECT_SECONDS)

    def _measure(self, host: str, port: int) -> orders.Measured:
        peer = Address(host, port)
        try:
            return orders.measure(peer, self.key)
        except LinkError as error:
            raise LinkError(f"{peer} cannot be measured from there: {error}") from None

    def _all_reduce(
        self, node_rank: int, host: str, port: int, run_id: str, with_gpus: bool
    ) -> orders.Checked:
        place = all_reduce.Place(node_rank, Address(host, port), run_id, with_gpus)
        return all_reduce.take_part(place, self.key)


def refuse(channel: Channel, reason: str) -> None:
    channel.send(wire.encode([False, reason]), time.monotonic() + orders.CONNECT_SECONDS)
