"""Connects ranks of different nodes: several TCP connections for each pair.

The higher rank of a pair connects to where the lower one listens: one connection for control (lane
0) and some for data. Before either trusts the messages that follow, both prove that they know the
job's secret and what the store told them, for this group, these two ranks and this lane:

Of a pair the higher rank connects, to where the lower one listens: a connection for control (lane
0) and some for data. Before either believes what comes next, both prove that they know the job's
secret and what the store told them, for this group, these two ranks and this lane:

    lower   magic, its nonce
    higher  rank, lane, its nonce, proof("client")
    lower   proof("server")

The proofs are those of the store's protocol (store/wire.py), under a key made for the lane. Without
a secret only who could read the store has this key, and a peer on this host must be of the same
user. What goes over the links afterwards is neither encrypted nor signed.
"""

from __future__ import annotations

import hmac
import math
import os
import resource
import secrets
import socket
import struct
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import msgpack

from torsh_runtime.backends.native.network import MAX_STREAMS, Network, listen
from torsh_runtime.connections.multiplexer import (
    ConnectionMultiplexer,
    Outcome,
    ProtocolCoroutine,
    Refused,
    check_user,
    connect,
    hang_up,
    receive,
    send,
)
from torsh_runtime.connections.peer import foreign_uid, user
from torsh_runtime.errors import CommError, CommTimeout, ConfigError, PeerLost
from torsh_runtime.store.keys import derive
from torsh_runtime.store.wire import NONCE_BYTES, is_proof, proof

MAGIC = b"torshlk1"
GREETING = struct.Struct(f"!8s{NONCE_BYTES}s")
ANSWER = struct.Struct(f"!II{NONCE_BYTES}s32s")

_ATTEMPT_SECONDS = 10.0
"""Seconds that one attempt to connect may take."""
_PATIENCE = 30.0
"""Seconds for which a peer is tried again that turns attempts away."""
_LOOK_AROUND = 0.5
"""Seconds between two looks at whether another rank has given up."""
_SPARE_DESCRIPTORS = 256
"""Room for callers that turn out to be strangers, and for what the program opens meanwhile."""
_ADVICE = (
    "Let no firewall stand between the nodes, or choose another network interface by "
    "TORSH_SOCKET_IFNAME."
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Holds what a peer needs to connect to a rank, which publishes it through the store."""

    addresses: Sequence[tuple[str, int]]
    """Hosts and ports at which the rank listens, in the order to try them."""
    token: bytes
    """A secret that only readers of the store know."""
    streams: int
    """The number of connections for data that the rank wants."""

    def pack(self) -> bytes:
        """Return the endpoint as bytes, for the store."""
        packed: bytes = msgpack.packb(asdict(self))
        return packed

    @classmethod
    def unpack(cls, rank: int, data: bytes) -> Endpoint:
        """Decode the output of pack. Raises CommError if the rank wrote something else."""
        try:
            contact = cls(**msgpack.unpackb(data))
            addresses = [(str(ip_address(host)), port) for host, port in contact.addresses]
            contact = replace(contact, addresses=addresses)
            contact._check()
            return contact
        except (TypeError, ValueError, msgpack.UnpackException):
            raise CommError(
                f"rank {rank} told where it listens in words that this rank does not understand. "
                f"Install the same version of torsh_runtime on all nodes."
            ) from None

    def _check(self) -> None:
        """Raise ValueError unless each field can be what it is declared to be."""
        ports = [port for _, port in self.addresses]
        if not ports or not all(type(port) is int and 0 < port < 1 << 16 for port in ports):
            raise ValueError
        if not isinstance(self.token, bytes) or len(self.token) != NONCE_BYTES:
            raise ValueError
        if type(self.streams) is not int or not 0 < self.streams <= MAX_STREAMS:
            raise ValueError


class Connection(NamedTuple):
    """Identifies one of the connections between this rank and a peer."""

    peer: int
    number: int
    """0 is for control."""


class Keys(NamedTuple):
    """Holds the secrets from which the proofs of a group's connections are made."""

    secret: bytes
    group: str

    def lane(self, lower: tuple[int, Endpoint], higher: tuple[int, Endpoint], number: int) -> bytes:
        """Return the key of one connection between two ranks, given the endpoints of both."""
        secret = self.secret + lower[1].token + higher[1].token
        ranks = (str(lower[0]), str(higher[0]))
        return derive(secret, "link", self.group, *ranks, str(lower[1].streams), str(number))


@dataclass(frozen=True, slots=True)
class Listeners:
    """Holds the sockets at which this rank listens for connections of higher ranks."""

    listeners: Sequence[socket.socket]
    contact: Endpoint

    @classmethod
    @contextmanager
    def opened(cls, network: Network) -> Iterator[Listeners]:
        """Listen at a free port of each address, for the length of the `with`.

        Raises ConfigError when there is no address to listen at.
        """
        listeners: list[socket.socket] = []
        try:
            listeners += map(listen, network.addresses())
            addresses = [listener.getsockname()[:2] for listener in listeners]
            token = secrets.token_bytes(NONCE_BYTES)
            yield cls(listeners, Endpoint(addresses, token, network.streams))
        finally:
            for listener in listeners:
                listener.close()


def connect_all(
    rank: int,
    doors: Listeners,
    contacts: Mapping[int, Endpoint],
    keys: Keys,
    timeout: float,
    look_around: Callable[[], None],
) -> dict[int, tuple[int, ...]]:
    """Link this rank up with each rank of `contacts`, within `timeout` seconds.

    Gives for each of them the descriptors of non-blocking sockets, now the caller's: the one for
    control, then those for data. On an error all are closed: CommTimeout names the ranks that
    did not come, PeerLost one that has gone meanwhile, CommError one that cannot be reached.
    `look_around` is called now and then, and may raise too.
    """
    lanes = sum(contact.streams + 1 for contact in contacts.values())
    _allow_descriptors(lanes + _SPARE_DESCRIPTORS)
    with ConnectionMultiplexer() as conversations:
        gathering = _Gathering(
            rank, doors.contact, contacts, keys, conversations, timeout, look_around
        )
        for listener in doors.listeners:
            conversations.listen(listener, gathering.admit)
        gathering.complete()
        return gathering.hand_over()


def _allow_descriptors(more: int) -> None:
    """Raise this process's soft limit if it has no room for so many more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(list(Path("/proc/self/fd").iterdir())) + more
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise ConfigError(
            f"linking up with the ranks of other nodes takes {more} more descriptors, and this "
            f"process may have no more than {hard} in all: raise the limit (ulimit -Hn), or set "
            f"TORSH_SOCKET_STREAMS=1"
        )
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass(slots=True)
class _Attempt:
    """A connection that this rank is to make."""

    lane: Connection
    when: float
    tries: int = 0
    first_failure: float = 0.0


class _Gathering:
    """Holds the existing connections and the missing ones."""

    def __init__(
        self,
        rank: int,
        own: Endpoint,
        contacts: Mapping[int, Endpoint],
        keys: Keys,
        conversations: ConnectionMultiplexer,
        timeout: float,
        look_around: Callable[[], None],
    ) -> None:
        now = time.monotonic()
        self._rank = rank
        self._own = own
        self._contacts = contacts
        self._keys = keys
        self._conversations = conversations
        self._timeout = timeout
        self._deadline = now + timeout
        self._look_around = look_around
        self._links: dict[Connection, socket.socket] = {}
        self._missing = {lane for peer in contacts for lane in self._lanes(peer)}
        self._waiting = [_Attempt(lane, now) for lane in sorted(self._missing) if lane.peer < rank]
        self._last_words: dict[int, Exception] = {}

    def admit(self, sock: socket.socket) -> ProtocolCoroutine:
        """Check the proof of a peer that connects, and answer with one; the result is its lane.

        Raises Refused if nobody waits for this lane or the proof is wrong.
        """
        check_user(sock, self._keys.secret)
        nonce = os.urandom(NONCE_BYTES)
        yield from send(sock, GREETING.pack(MAGIC, nonce))
        answer = yield from receive(sock, ANSWER.size)
        peer, number, client_nonce, claim = ANSWER.unpack(answer)
        if peer <= self._rank or Connection(peer, number) not in self._missing:
            raise Refused("nobody waits for this lane")
        key = self._keys.lane((self._rank, self._own), (peer, self._contacts[peer]), number)
        if not is_proof(claim, key, "client", nonce, client_nonce):
            raise Refused("it does not know this job's secret")
        if Connection(peer, number) not in self._missing:
            raise Refused("nobody waits for this lane any more")
        yield from send(sock, proof(key, "server", nonce, client_nonce))
        return Connection(peer, number)

    def complete(self) -> None:
        """Return when all links are there."""
        looked = time.monotonic()
        while self._missing:
            now = time.monotonic()
            if now >= self._deadline:
                raise self._too_late()
            if now - looked >= _LOOK_AROUND:
                self._look_around()
                looked = now
            self._begin_due(now)
            for outcome in self._conversations.turn(self._pause(now)):
                self._note(outcome)

    def hand_over(self) -> dict[int, tuple[int, ...]]:
        """Return the connections of each peer, which belong to the caller from now on."""
        for sock in self._links.values():
            self._conversations.end(sock)
        return {
            peer: tuple(self._links[lane].detach() for lane in self._lanes(peer))
            for peer in sorted(self._contacts)
        }

    def _lanes(self, peer: int) -> list[Connection]:
        """Return all lanes of a pair: the lower rank determines their number."""
        contact = self._own if self._rank < peer else self._contacts[peer]
        return [Connection(peer, number) for number in range(contact.streams + 1)]

    def _pause(self, now: float) -> float:
        due = min((attempt.when for attempt in self._waiting), default=self._deadline)
        return min(due, self._deadline, now + _LOOK_AROUND) - now

    def _begin_due(self, now: float) -> None:
        due = [attempt for attempt in self._waiting if attempt.when <= now]
        self._waiting = [attempt for attempt in self._waiting if attempt.when > now]
        for attempt in due:
            addresses = self._contacts[attempt.lane.peer].addresses
            address = addresses[attempt.tries % len(addresses)]
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            script = self._introduce(sock, address, attempt.lane)
            self._begin(sock, script, min(self._deadline, now + _ATTEMPT_SECONDS), attempt)

    def _introduce(
        self, sock: socket.socket, address: tuple[str, int], lane: Connection
    ) -> Generator[int, None, ProtocolCoroutine]:
        """Connect and answer; the result is the rest of the conversation."""
        yield from connect(sock, address)
        magic, nonce = GREETING.unpack((yield from receive(sock, GREETING.size)))
        if magic != MAGIC:
            raise Refused("what listens there is no rank of a torsh job")
        uid = foreign_uid(sock, self._keys.secret)
        if uid is not None:
            raise Refused(f"{user(uid)} listens there, and this rank is of {user(os.geteuid())}")
        key = self._keys.lane(
            (lane.peer, self._contacts[lane.peer]), (self._rank, self._own), lane.number
        )
        own_nonce = os.urandom(NONCE_BYTES)
        claim = proof(key, "client", nonce, own_nonce)
        yield from send(sock, ANSWER.pack(self._rank, lane.number, own_nonce, claim))
        return _hear_verdict(sock, proof(key, "server", nonce, own_nonce), lane)

    def _note(self, outcome: Outcome) -> None:
        label, result, error = outcome.label, outcome.result, outcome.error
        if isinstance(label, Connection):
            self._look_around()  # perhaps it could say why
            raise PeerLost(label.peer, "init_process_group", 0, "it closed its connections")
        if isinstance(label, _Attempt) and error is not None:
            self._try_again(label, error)
        elif isinstance(result, Connection):
            self._keep(result, outcome.sock)
        elif error is None:
            # Having answered it must not give up by itself: the peer may count the link as there.
            self._begin(outcome.sock, result, self._deadline, label)

    def _begin(
        self, sock: socket.socket, script: ProtocolCoroutine, deadline: float, label: object
    ) -> None:
        outcome = self._conversations.begin(sock, script, deadline, label)
        if outcome is not None:
            self._note(outcome)

    def _keep(self, lane: Connection, sock: socket.socket) -> None:
        if lane not in self._missing:  # two callers gave the same one, at the same time
            sock.close()
            return
        self._missing.discard(lane)
        self._links[lane] = sock
        self._begin(sock, hang_up(sock), math.inf, lane)

    def _try_again(self, attempt: _Attempt, error: Exception) -> None:
        peer, now = attempt.lane.peer, time.monotonic()
        self._last_words[peer] = error
        attempt.first_failure = attempt.first_failure or now
        if now - attempt.first_failure > _PATIENCE:
            self._look_around()
            raise CommError(f"{self._describe(peer)}. {_ADVICE}")
        attempt.when = now + min(0.02 * 2**attempt.tries, 1.0)
        attempt.tries += 1
        self._waiting.append(attempt)

    def _too_late(self) -> CommTimeout:
        peers = sorted({lane.peer for lane in self._missing})
        failures = [self._describe(peer) for peer in peers if peer in self._last_words]
        detail = f" ({'; '.join(failures[:3])}. {_ADVICE})" if failures else ""
        return CommTimeout("init_process_group", 0, self._timeout, peers, detail)

    def _describe(self, peer: int) -> str:
        where = ", ".join(f"{host}:{port}" for host, port in self._contacts[peer].addresses)
        return f"rank {peer} cannot be reached at {where}: {self._last_words[peer]}"


def _hear_verdict(sock: socket.socket, expected: bytes, lane: Connection) -> ProtocolCoroutine:
    try:
        verdict = yield from receive(sock, len(expected), last=False)
    except EOFError:
        raise Refused("it hung up on this rank: do both have the same TORSH_SECRET?") from None
    if not hmac.compare_digest(verdict, expected):
        raise Refused("what listens there does not know this job's secret")
    return lane
