"""Takes connections from a listening socket, and sends foreign users away before they cost much."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from torsh_runtime.store import wire
from torsh_runtime.store.peer import foreign_uid

_AT_ONCE = 64
"""Connections taken before the loop turns to its other work."""
_PAUSE = 0.1
"""Seconds until the next attempt when the process has no descriptor left."""
_FOREIGN = wire.encode_refusal("it speaks only with processes of its own user")


class Acceptor:
    """Calls `welcome(sock)` with each connection of which the peer may be spoken with (peer.py),
    `refused(reason)` for the others, and `make_room()` when this process has no descriptor left.

    Use it within an event loop. The listening socket is its own.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        welcome: Callable[[socket.socket], None],
        refused: Callable[[str], None],
        make_room: Callable[[], None],
    ) -> None:
        self._listener = listener
        self._secret = secret
        self._welcome = welcome
        self._refused = refused
        self._make_room = make_room
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Stop listening. A second time does nothing."""
        if self._listener.fileno() < 0:
            return
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _listen(self) -> None:
        self._again = None
        self._loop.add_reader(self._listener, self._accept_some)

    def _accept_some(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._loop.remove_reader(self._listener)
                self._again = self._loop.call_later(_PAUSE, self._listen)
                self._refused(f"nobody can connect now: {error.strerror}")
                self._make_room()
                return
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        try:
            uid = foreign_uid(sock, self._secret)
            if uid is None:
                self._welcome(sock)
                return
            self._refused(f"a process of uid {uid}, another user of this host")
            sock.send(_FOREIGN)
        except OSError:
            pass  # it has gone
        sock.close()
