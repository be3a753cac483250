"""Connects two workers at the first call: over a Unix socket within a node, else over TCP.

    listener  magic, its nonce, address and value of its probe
    caller    its nonce, proof("client"), its probe, its id
    listener  proof("server"), whether it can read the caller's memory
    caller    whether it can read the listener's

The proofs are those of the store's protocol, under a key of the job's secret, the listener's token
and both ids. A caller that only wants to know whether a worker is alive hangs up before its last
message, and is not let in. A probe is a word of a process's memory: within a node buffers are not
sent where each of the two can read the other's memory (process_vm_readv(2)).
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.connections.multiplexer import (
    ConnectionMultiplexer,
    ProtocolCoroutine,
    Refused,
    check_user,
    receive,
    send,
)
from torsh_runtime.connections.peer import pid_of_peer
from torsh_runtime.rpc.directory import Worker
from torsh_runtime.store.keys import derive
from torsh_runtime.store.wire import NONCE_BYTES, is_proof, proof

MAGIC = b"torshrp1"
GREETING = struct.Struct(f"!8s{NONCE_BYTES}sQQ")
ANSWER = struct.Struct(f"!{NONCE_BYTES}s32sQQI")
VERDICT = struct.Struct("!32sB")
_ATTEMPT_SECONDS = 10.0


class Keys(NamedTuple):
    """Keys of one connection, for the frames of each direction."""

    own: bytes
    peer: bytes


class Opened(NamedTuple):
    """A connection over which both sides have proved themselves."""

    sock: socket.socket
    peer: int
    keys: Keys
    pid: int
    """The peer's process id, if each can read the other's memory; else 0."""


class _Proved(NamedTuple):
    """Holds what a listener has proved to a caller."""

    keys: Keys
    address: int
    """Address of the listener's probe."""
    word: int
    """Value at that address."""
    is_read: bool
    """True if the listener can read the caller's memory."""


class Unreachable(Exception):
    """Raised when nobody answers at the worker's addresses."""


class PendingConnections:
    """Carries out the handshake of new connections, and proves this process's identity."""

    def __init__(self, secret: bytes, own_id: int) -> None:
        self.own_id = own_id
        self.token = secrets.token_bytes(NONCE_BYTES)
        self._secret = secret
        self._probe = _native.Probe(secrets.randbits(63))

    def admit(self, sock: socket.socket) -> ProtocolCoroutine:
        """Carry out the listener's side of the handshake. The coroutine's result is an Opened."""
        check_user(sock, self._secret)
        nonce = os.urandom(NONCE_BYTES)
        yield from send(sock, GREETING.pack(MAGIC, nonce, self._probe.address, self._probe.word))
        answer = yield from receive(sock, ANSWER.size)
        client_nonce, claim, address, word, peer = ANSWER.unpack(answer)
        key = self._key(self.token, self.own_id, peer)
        if not is_proof(claim, key, "client", nonce, client_nonce):
            raise Refused("it does not know this job's secret")
        pid = _readable(sock, address, word)
        yield from send(sock, VERDICT.pack(proof(key, "server", nonce, client_nonce), pid != 0))
        is_mutual = (yield from receive(sock, 1, last=False)) == b"\x01"
        own, other = _frame_keys(key, nonce, client_nonce)
        return Opened(sock, peer, Keys(own, other), pid if is_mutual else 0)

    def connect(self, worker: Worker, is_near: bool, deadline: float) -> Opened:
        """Open a connection to the worker. Raises Unreachable when nobody answers or it is another
        process, TimeoutError after the deadline."""
        return self._finish(*self._introduced(worker, is_near, deadline), worker)

    def check_alive(self, worker: Worker, is_near: bool, deadline: float) -> None:
        """Let the worker prove itself and hang up, which it does not take for a connection. Raises
        as connect() does."""
        self._introduced(worker, is_near, deadline)[0].close()

    def _introduced(
        self, worker: Worker, is_near: bool, deadline: float
    ) -> tuple[socket.socket, _Proved]:
        trouble: Exception = Unreachable("it listens nowhere")
        for address in worker.near if is_near else worker.far:
            family = socket.AF_UNIX if isinstance(address, str) else _family(address[0])
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                return sock, self._introduce(sock, address, worker, deadline)
            except (OSError, EOFError, Refused) as error:
                sock.close()
                trouble = error
        if isinstance(trouble, TimeoutError):
            raise trouble
        raise Unreachable(str(trouble)) from None

    def _introduce(
        self, sock: socket.socket, address: str | tuple[str, int], worker: Worker, deadline: float
    ) -> _Proved:
        left = deadline - time.monotonic()
        sock.settimeout(max(min(left, _ATTEMPT_SECONDS), 0.001))
        sock.connect(address)
        magic, nonce, probe, word = GREETING.unpack(_receive(sock, GREETING.size))
        if magic != MAGIC:
            raise Refused("what listens there is no worker of a torsh job")
        check_user(sock, self._secret)
        own_nonce = os.urandom(NONCE_BYTES)
        key = self._key(worker.token, worker.info.id, self.own_id)
        claim = proof(key, "client", nonce, own_nonce)
        own_probe = self._probe.address, self._probe.word
        sock.sendall(ANSWER.pack(own_nonce, claim, *own_probe, self.own_id))
        verdict, is_read = VERDICT.unpack(_receive(sock, VERDICT.size))
        if not is_proof(verdict, key, "server", nonce, own_nonce):
            raise Refused("what listens there does not know this job's secret")
        other, own = _frame_keys(key, nonce, own_nonce)
        return _Proved(Keys(own, other), probe, word, bool(is_read))

    def _finish(self, sock: socket.socket, proved: _Proved, worker: Worker) -> Opened:
        pid = _readable(sock, proved.address, proved.word)
        try:
            sock.sendall(b"\x01" if pid else b"\x00")
        except OSError as error:
            sock.close()
            raise Unreachable(str(error)) from None
        return Opened(sock, worker.info.id, proved.keys, pid if proved.is_read else 0)

    def _key(self, token: bytes, listener: int, caller: int) -> bytes:
        return derive(self._secret, "rpc", token, str(listener), str(caller))


class Connector:
    """A thread that accepts connections of callers. Close it."""

    def __init__(
        self,
        listeners: Iterable[socket.socket],
        lobby: PendingConnections,
        opened: Callable[[Opened], object],
    ) -> None:
        self._listeners = list(listeners)
        self._lobby = lobby
        self._opened = opened
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="torsh-rpc-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections."""
        self._stop.close()
        if self._thread is not threading.current_thread():
            self._thread.join(_ATTEMPT_SECONDS)
        for listener in self._listeners:
            listener.close()

    def close_in_fork(self) -> None:
        """Close the listeners in a fork of this process, which does not have the thread, so that
        callers find nobody once the process itself has ended."""
        for listener in self._listeners:
            listener.close()

    def _run(self) -> None:
        with ConnectionMultiplexer() as conversations, self._stopped:
            for listener in self._listeners:
                conversations.listen(listener, self._lobby.admit)
            conversations.begin(self._stopped, _hung_up(), float("inf"), self)
            while True:
                try:
                    for outcome in conversations.turn(60.0):
                        if outcome.label is self:
                            return
                        if outcome.error is None:
                            self._opened(outcome.result)
                except OSError:  # no descriptor is left: callers wait in the sockets' queues
                    time.sleep(0.1)


def _hung_up() -> ProtocolCoroutine:
    yield select.EPOLLRDHUP


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError("it hung up on this worker: do both have the same TORSH_SECRET?")
        data += part
    return data


def _readable(sock: socket.socket, address: int, word: int) -> int:
    """Return the id of the process at the other end if its memory can be read from here, else 0."""
    if sock.family != socket.AF_UNIX:
        return 0
    with suppress(OSError):
        pid = pid_of_peer(sock)
        if pid > 0 and _native.can_read_memory(pid, address, word):
            return pid
    return 0


def _frame_keys(key: bytes, nonce: bytes, client_nonce: bytes) -> tuple[bytes, bytes]:
    """Return the key of the frames that the listener sends, and of those that the caller sends."""
    ways = ("listener", "caller")
    listener, caller = (derive(key, "rpc frames", way, nonce, client_nonce) for way in ways)
    return listener, caller
