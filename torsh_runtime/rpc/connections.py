"""The connections of this worker to others. Each is opened at the first call, and again when it has
ended."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from torsh_runtime.rpc.connector import Keys, Opened, PendingConnections, Unreachable
from torsh_runtime.rpc.directory import Directory, Worker
from torsh_runtime.rpc.failures import CallTimeout, lost
from torsh_runtime.rpc.functions import name_of


class PeerConnection:
    """Represents one connection to a worker."""

    __slots__ = ("connection", "peer")

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.connection = 0
        """The hub's number for it."""


class PeerConnections:
    """Holds all connections of this worker, and opens them."""

    def __init__(self, hub: Any, directory: Directory, lobby: PendingConnections) -> None:
        self._hub = hub
        self._directory = directory
        self._lobby = lobby
        self._lock = threading.Lock()
        self._opening: dict[int, threading.Lock] = {}
        self._by_peer: dict[int, PeerConnection] = {}
        self._by_connection: dict[int, PeerConnection] = {}

    def to(self, worker: Worker, function: Any, deadline: float) -> PeerConnection:
        """Return a connection to the worker. Raises PeerLost when the worker has gone, or
        CallTimeout."""
        found = self._by_peer.get(worker.info.id)
        if found is not None:
            return found
        with self._lock:
            opening = self._opening.setdefault(worker.info.id, threading.Lock())
        began = time.monotonic()
        if not opening.acquire(timeout=min(max(deadline - began, 0.0), threading.TIMEOUT_MAX)):
            detail = ": another thread is still connecting to it"
            raise CallTimeout(name_of(function), *worker.info, deadline - began, detail)
        try:  # one thread opens it for all
            found = self._by_peer.get(worker.info.id)
            return found or self._opened(worker, name_of(function), deadline)
        finally:
            opening.release()

    def drop(self, link: PeerConnection) -> None:
        """Let the next call open another connection."""
        with self._lock:
            if self._by_peer.get(link.peer) is link:
                del self._by_peer[link.peer]

    def of(self, connection: int) -> PeerConnection | None:
        """Return the connection with this number of the hub, or None if it has ended."""
        found = self._by_connection.get(connection)
        if found is None:
            with self._lock:  # it is just being entered
                found = self._by_connection.get(connection)
        return found

    def enter(self, opened: Opened) -> PeerConnection:
        """Take over a connection that is open."""
        link = PeerConnection(opened.peer)
        opened.sock.setblocking(False)
        with self._lock:
            link.connection = self._hub.add(opened.sock.detach(), opened.pid, *opened.keys)
            self._by_connection[link.connection] = link
            self._by_peer.setdefault(opened.peer, link)
        return link

    def ended(self, connection: int) -> PeerConnection | None:
        """Forget the connection. Return it, or None if it was forgotten already."""
        with self._lock:
            link = self._by_connection.pop(connection, None)
            if link is not None and self._by_peer.get(link.peer) is link:
                del self._by_peer[link.peer]
        return link

    def peers(self) -> set[int]:
        """Return the ids of the workers to which there are connections."""
        with self._lock:
            return {link.peer for link in self._by_connection.values()}

    def _opened(self, worker: Worker, function: str, deadline: float) -> PeerConnection:
        own = self._directory.own
        if worker.info.id == own.info.id:
            return self._to_self()
        began = time.monotonic()
        last: Worker | None = None
        while worker != last:
            try:
                is_near = worker.is_near(own)
                return self.enter(self._lobby.connect(worker, is_near, deadline))
            except Unreachable as error:
                last, worker = worker, self._directory.refreshed(worker)
                reason = f"it cannot be reached: {error}"
            except TimeoutError:
                detail = ": it has not accepted the connection"
                waited = time.monotonic() - began
                raise CallTimeout(function, *worker.info, waited, detail) from None
        self._directory.forget(worker)
        raise lost(worker.info, worker.host, function, reason)

    def _to_self(self) -> PeerConnection:
        """Connect this worker to itself, since calls to oneself take the same way as all others."""
        ends = socket.socketpair()
        own = self._directory.own
        keys = [Keys(b"1" * 32, b"2" * 32), Keys(b"2" * 32, b"1" * 32)]
        made = [
            self.enter(Opened(sock, own.info.id, key, own.pid))
            for sock, key in zip(ends, keys, strict=True)
        ]
        return made[0]
