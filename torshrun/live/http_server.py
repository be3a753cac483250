"""HttpServer: answers one request on each connection, whatever other clients do or leave undone."""

from __future__ import annotations

import contextlib
import errno
import re
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from torshrun.live.listener import listen

MOST_VISITS = 64
"""Connections from this host that are open at a time, and those from others: for one more, the
oldest is dropped of the address that has the most."""
VISIT_SECONDS = 5.0
"""How long a connection may take in all."""
LONGEST_REQUEST = 16384
"""Bytes of a request, with its headers, that are looked at."""
CLOSE_SECONDS = 1.0
"""How long close() waits for the thread."""
_BACKLOG = 256

Respond = Callable[[bytes], bytes]
"""Makes a response of what came up to the empty line, or of LONGEST_REQUEST bytes without one."""


@dataclass(eq=False, slots=True)
class _Visit:
    """A connection, from when it was taken to when both sides have ended it."""

    connection: socket.socket
    host: str
    """The client's address; "" for all of this host."""
    end: float
    """When it is cut off."""
    request: bytearray = field(default_factory=bytearray)
    unsent: memoryview | None = None
    """What is left of the response; None while the request is awaited."""


class HttpServer:
    """Serves in one thread of its own, so that it costs nothing while nobody asks. A client that is
    idle, slow or one of very many never keeps another one out.
    """

    def __init__(self, host: str, port: int, respond: Respond) -> None:
        """Listen. `host` is a name, an IPv4 or IPv6 address, or "" for every address; port 0 is
        any. Raises ConfigError if the address cannot be had. Clients wait until start().
        """
        self._listener = listen(host.removeprefix("[").removesuffix("]"), port, _BACKLOG)
        self._respond = respond
        self._visits: list[_Visit] = []  # the oldest first
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torsh-http", daemon=True)

    @property
    def url(self) -> str:
        """Where it serves, as in "http://127.0.0.1:9090"."""
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def close(self) -> None:
        """End all connections, within bounded time."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            for visit in list(self._visits):
                self._drop(visit)
            self._selector.close()
        self._listener.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            ready = self._selector.select(self._patience())
            now = time.monotonic()  # before the answers: those that wait for them are not late
            for key, _ in ready:
                self._serve(key.data) if key.data else self._accept()
            for visit in [visit for visit in self._visits if visit.end <= now]:
                self._drop(visit)

    def _patience(self) -> float | None:
        """Seconds until the next connection is overdue; None if there is none."""
        ends = [visit.end for visit in self._visits]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
            connection.setblocking(False)
            host = _foreign(address[0], connection.getsockname()[0])
        except OSError as error:  # gone again, or closing
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room(self._visits)
            return
        alike = [visit for visit in self._visits if bool(visit.host) == bool(host)]
        if len(alike) >= MOST_VISITS:
            self._make_room(alike)
        visit = _Visit(connection, host, time.monotonic() + VISIT_SECONDS)
        self._visits.append(visit)
        self._selector.register(connection, selectors.EVENT_READ, visit)

    def _make_room(self, visits: list[_Visit]) -> None:
        if not visits:  # all descriptors of the process are used up, and none of them is ours
            self._closing.wait(0.1)
            return
        most = Counter(visit.host for visit in visits).most_common(1)[0][0]
        self._drop(next(visit for visit in visits if visit.host == most))

    def _drop(self, visit: _Visit) -> None:
        self._visits.remove(visit)
        self._selector.unregister(visit.connection)
        visit.connection.close()

    def _serve(self, visit: _Visit) -> None:
        if visit not in self._visits:  # dropped since it was found ready
            return
        try:
            if visit.unsent is None:
                self._receive(visit)
            elif visit.unsent:
                self._send(visit, visit.unsent)
            elif not visit.connection.recv(65536):  # it has got all, and ends its side
                self._drop(visit)
        except BlockingIOError:
            pass
        except OSError:  # the client went away
            self._drop(visit)

    def _receive(self, visit: _Visit) -> None:
        data = visit.connection.recv(LONGEST_REQUEST)
        request = visit.request
        request += data
        blank = re.search(rb"\n\r?\n", request)
        if blank or len(request) >= LONGEST_REQUEST:
            whole = bytes(request[: blank.end() if blank else LONGEST_REQUEST])
            self._send(visit, memoryview(self._respond(whole)))
        elif not data:
            self._drop(visit)

    def _send(self, visit: _Visit, response: memoryview) -> None:
        visit.unsent = response  # also if none of it can be sent now
        self._selector.modify(visit.connection, selectors.EVENT_WRITE, visit)
        visit.unsent = response[visit.connection.send(response) :]
        if not visit.unsent:  # read on: a connection closed over unread data may lose the response
            visit.connection.shutdown(socket.SHUT_WR)
            self._selector.modify(visit.connection, selectors.EVENT_READ, visit)


def _foreign(client: str, own: str) -> str:
    """The client's address if it is another host's; "" for this one."""
    is_here = client == own or client.removeprefix("::ffff:").startswith("127.")
    return "" if is_here else client
