"""MetricsServer: /metrics and /healthz over HTTP, out of the way of the agent's loop."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from torshrun.live.listener import listen
from torshrun.live.snapshot import Snapshot

if TYPE_CHECKING:
    from torshrun.live.pages import Site

MOST_VISITS = 8
"""Connections that are served at a time; further ones are closed at once."""
VISIT_SECONDS = 5.0
"""How long a connection may take in all."""
CLOSE_SECONDS = 1.0
"""How long close() waits for threads."""


class MetricsServer:
    """Serves what `snapshot` says; that is called in threads of the server's own.

    Nothing heavy is loaded until the first client comes. Slow clients are cut off.
    """

    def __init__(self, host: str, port: int, snapshot: Callable[[], Snapshot]) -> None:
        """Listen. `host` is a name, an IPv4 or IPv6 address, or "" for every address; port 0 is
        any. Raises ConfigError if the address cannot be had. Clients wait until start().
        """
        self._listener = listen(host.removeprefix("[").removesuffix("]"), port, 8 * MOST_VISITS)
        self._snapshot = snapshot
        self._site: Site | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._ends: dict[socket.socket, float] = {}  # open connections; when they must be over
        self._visitors: list[threading.Thread] = []  # the door's, until that has ended
        self._door = threading.Thread(target=self._keep_door, name="torsh-http", daemon=True)

    @property
    def url(self) -> str:
        """Where it serves, as in "http://127.0.0.1:9090"."""
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def start(self) -> None:
        """Begin to serve."""
        self._door.start()

    def close(self) -> None:
        """End all connections, within bounded time."""
        deadline = time.monotonic() + CLOSE_SECONDS
        self._closing.set()
        _shut(self._listener)  # wakes the door
        if self._door.ident is not None:
            self._door.join(CLOSE_SECONDS)
        self._cut_off(until=float("inf"))
        for visitor in list(self._visitors):
            visitor.join(max(0.0, deadline - time.monotonic()))
        self._listener.close()

    def _keep_door(self) -> None:
        while not self._closing.is_set():
            now = time.monotonic()
            self._cut_off(until=now)
            if select.select([self._listener], [], [], self._patience(now))[0]:
                self._accept()

    def _patience(self, now: float) -> float | None:
        """Seconds until the next connection is overdue; None if there is none."""
        with self._lock:
            return max(0.0, min(self._ends.values()) - now) if self._ends else None

    def _cut_off(self, until: float) -> None:
        with self._lock:
            for connection, end in self._ends.items():
                if end <= until:
                    self._ends[connection] = end + VISIT_SECONDS  # once is enough
                    _shut(connection)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # gone again, or no descriptor left
            self._closing.wait(0.1)
            return
        self._visitors = [visitor for visitor in self._visitors if visitor.is_alive()]
        if len(self._visitors) >= MOST_VISITS:
            connection.close()
            return
        with self._lock:
            self._ends[connection] = time.monotonic() + VISIT_SECONDS
        visitor = threading.Thread(
            target=self._receive, args=(connection,), name="torsh-http-visit", daemon=True
        )
        self._visitors.append(visitor)
        visitor.start()

    def _receive(self, connection: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):  # the client went away, or was cut off
                self._load_site().visit(connection)
        finally:
            with self._lock:  # nobody may shut a descriptor that has become another's
                del self._ends[connection]
                connection.close()

    def _load_site(self) -> Site:
        """Made by the first to come; should two come at once, either's will do."""
        if self._site is None:
            from torshrun.live.pages import Site

            self._site = Site(self._snapshot)
        return self._site


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
