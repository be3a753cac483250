"""Authenticated blocking connections to a StoreServer, and a pool of connections to one server."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from functools import partial

from torsh_runtime.connections.peer import check_server, is_private
from torsh_runtime.errors import StoreError
from torsh_runtime.store.endpoint import Endpoint
from torsh_runtime.store.session import ClientSession, Session
from torsh_runtime.store.sockets import connect, remaining

ATTEMPT_SECONDS = 15.0
MAX_IDLE = 4
_CHUNK = 1 << 20

# Deadlines are moments of time.monotonic(). OSError (including TimeoutError) and EOFError mean
# that the connection failed; StoreError that the other side is not the store it should be.


class Channel:
    """Represents a connection, which one thread uses at a time.

    After any error other than a timeout of `receive` it must be closed. A server creates one from
    a socket and the session that its handshake returned; a client calls `open`.
    """

    def __init__(self, sock: socket.socket, session: Session) -> None:
        self._sock = sock
        self._session = session

    @classmethod
    def open(cls, endpoint: Endpoint, secret: bytes, deadline: float) -> Channel:
        """Connect, by a single attempt, and let both sides prove that they know the secret.

        Raises OSError or EOFError when the connection fails, StoreError when what listens there is
        no store or does not know the secret.
        """
        session = ClientSession(secret)
        channel = cls(connect(endpoint, deadline), session)
        try:
            channel._authenticate(session, secret, deadline)
        except BaseException:
            channel.close()
            raise
        return channel

    def send(self, frame: bytes, deadline: float) -> None:
        """Send one encoded frame."""
        self._sock.settimeout(remaining(deadline))
        self._sock.sendall(self._session.pack(frame))

    def receive(self, deadline: float) -> bytes:
        """Return the next frame's payload.

        Raises EOFError when the store hangs up, TimeoutError at the deadline, after which it may be
        called again.
        """
        while (payload := self._session.take()) is None:
            self._sock.settimeout(remaining(deadline))
            data = self._sock.recv(_CHUNK)
            if not data:
                raise EOFError("the store hung up")
            self._session.feed(data)
        return payload

    def is_alive(self) -> bool:
        """Return whether an idle connection is still open, as far as this side knows."""
        try:
            self._sock.settimeout(0)
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # it hung up, or sent what nobody asked for

    def is_private(self) -> bool:
        """Return whether the server is a process of this host, run by this user or root, at an
        address that no other host can reach."""
        return is_private(self._sock)

    def interrupt(self) -> None:
        """Wake the thread that waits in this connection with an error.

        That thread closes the connection, as a descriptor that is closed under a waiting thread
        may be reused before the thread looks at it again.
        """
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self.interrupt()
        self._sock.close()

    @property
    def sock(self) -> socket.socket:
        """Return the socket, for two sides that have agreed to continue with bytes of their own."""
        return self._sock

    def forget(self) -> None:
        """Close this process's copy of a connection that another process continues to use."""
        self._sock.close()

    def _authenticate(self, session: ClientSession, secret: bytes, deadline: float) -> None:
        try:
            greeting = self.receive(deadline)
        except TimeoutError:
            check_server(self._sock, secret)  # another user's, it may stay silent for ever
            raise
        answer = session.answer(greeting, partial(check_server, self._sock, secret))
        self.send(answer, deadline)
        session.confirm(self.receive(deadline))


class ChannelPool:
    """Manages the connections to one store for any number of threads.

    Each request has a connection to itself, so that a long wait delays no other request. A forked
    child opens its own connections.
    """

    def __init__(self, endpoint: Endpoint, secret: bytes) -> None:
        self.endpoint = endpoint
        self._secret = secret
        self._lock = threading.Lock()
        self._idle: list[Channel] = []
        self._busy: set[Channel] = set()
        self._process = os.getpid()
        self._closed = False

    def take(self, deadline: float) -> Channel:
        """Return a connection for one request: an idle one, or a new one by a single attempt.

        Raises as Channel.open does, and StoreError when the pool is closed.
        """
        self._leave_parent()
        while (channel := self._pop()) is not None:
            if channel.is_alive():
                return channel
            self.drop(channel)
        return self._keep(Channel.open(self.endpoint, self._secret, deadline))

    def open_first(self, deadline: float) -> None:
        """Connect, and try again while no process listens.

        Raises the last OSError or EOFError when the deadline passes; StoreError at once.
        """
        pause = 0.02
        while True:
            try:
                attempt = min(deadline, time.monotonic() + ATTEMPT_SECONDS)
                self.give(self._keep(Channel.open(self.endpoint, self._secret, attempt)))
                return
            except (OSError, EOFError) as error:
                if isinstance(error, StoreError) or time.monotonic() + pause >= deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    def give(self, channel: Channel) -> None:
        """Return a connection that has nothing under way."""
        with self._lock:
            self._busy.discard(channel)
            if not self._closed and len(self._idle) < MAX_IDLE:
                self._idle.append(channel)
                return
        channel.close()

    def drop(self, channel: Channel) -> None:
        """Close a connection that failed or has something under way."""
        with self._lock:
            self._busy.discard(channel)
        channel.close()

    def close(self) -> None:
        """Close all connections; requests under way in other threads fail."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().close()
            for channel in self._busy:  # their users drop them, and need the lock for that
                channel.interrupt()

    def _pop(self) -> Channel | None:
        with self._lock:
            if self._closed:
                raise StoreError("this client is closed; connect again")
            channel = self._idle.pop() if self._idle else None
            if channel is not None:
                self._busy.add(channel)
            return channel

    def _keep(self, channel: Channel) -> Channel:
        with self._lock:
            if not self._closed:
                self._busy.add(channel)
                return channel
        channel.close()
        raise StoreError("this client was closed meanwhile; connect again")

    def _leave_parent(self) -> None:
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self._lock = threading.Lock()  # another thread of the parent may have held it
        for channel in (*self._idle, *self._busy):
            channel.forget()
        self._idle.clear()
        self._busy.clear()
