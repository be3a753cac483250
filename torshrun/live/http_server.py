"""HttpServer: answers one request on each connection, whatever other clients do or leave undone."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from torsh_runtime.errors import ConfigError

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
Visit = TypeVar("Visit")


class HttpServer:
    """Serves in one thread of its own, so that it costs nothing while nobody asks. A client that is
    idle, slow or one of very many never keeps another one out.
    """

    def __init__(self, host: str, port: int, respond: Respond) -> None:
        """Listen. `host` is a name, an IPv4 or IPv6 address, or "" for every address; port 0 is
        any. Raises ConfigError if the address cannot be had. Clients wait until start().
        """
        self._listener = listen(host.removeprefix("[").removesuffix("]"), port)
        self._respond = respond
        self._visits: dict[asyncio.Task[None], str] = {}
        """The oldest first, with the address of the client, "" for all of this host."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torsh-http", daemon=True)

    @property
    def url(self) -> str:
        """Where it serves, as in "http://127.0.0.1:9090"."""
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End all connections, within bounded time."""
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)
        self._listener.close()

    def _run(self) -> None:
        asyncio.run(self._accept_all())

    async def _accept_all(self) -> None:
        over = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._listener, self._accept, over)
        await over.wait()

    def _accept(self, over: asyncio.Event) -> None:
        if self._closing.is_set():
            over.set()
            return
        try:
            connection, address = self._listener.accept()
            connection.setblocking(False)
            host = foreign(address[0], connection.getsockname()[0])
        except OSError as error:  # gone again
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room(self._visits)
            return
        alike = {visit: its for visit, its in self._visits.items() if bool(its) == bool(host)}
        if len(alike) >= MOST_VISITS:
            self._make_room(alike)
        visit = asyncio.get_running_loop().create_task(self._serve(connection))
        self._visits[visit] = host
        visit.add_done_callback(lambda visit: self._visits.pop(visit, None))

    def _make_room(self, visits: Mapping[asyncio.Task[None], str]) -> None:
        if visits:
            visit = oldest_of_most(visits)
            visit.cancel()
            del self._visits[visit]
        else:  # all descriptors of the process are used up, and none of them is ours
            self._closing.wait(0.1)

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with connection, suppress(OSError):  # the client went away, or was too slow
            async with asyncio.timeout(VISIT_SECONDS):
                if request := await _receive(connection):
                    await loop.sock_sendall(connection, self._respond(request))
                    connection.shutdown(socket.SHUT_WR)
                    # Closed over unread data a connection may lose the response.
                    while await loop.sock_recv(connection, 65536):  # noqa: ASYNC110
                        await asyncio.sleep(0)


async def _receive(connection: socket.socket) -> bytes:
    """A request, as Respond takes it; b"" if the client ends before it has made one."""
    loop, request = asyncio.get_running_loop(), b""
    while len(request) < LONGEST_REQUEST:
        data = await loop.sock_recv(connection, LONGEST_REQUEST)
        request += data
        blank = re.search(rb"\n\r?\n", request)
        if blank or not data:
            return request[: blank.end()] if blank else b""
    return request[:LONGEST_REQUEST]


def oldest_of_most(visits: Mapping[Visit, str]) -> Visit:
    """Of these, by their clients' addresses, the first of the address that has the most."""
    most, _ = Counter(visits.values()).most_common(1)[0]
    return next(visit for visit, host in visits.items() if host == most)


def foreign(client: str, own: str) -> str:
    """The client's address if it is another host's; "" for this one."""
    is_here = client == own or client.removeprefix("::ffff:").startswith("127.")
    return "" if is_here else client


def listen(host: str, port: int) -> socket.socket:
    """A non-blocking listening socket; port 0 is any.

    `host` is a name, an IPv4 or IPv6 address, or "" for all addresses of both families. A name with
    addresses of both is served on IPv4, where clients of either look. Raises ConfigError.
    """
    problem = OSError(errno.EADDRNOTAVAIL, "")
    for family, address in _places(host, port):
        wide = not host and family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        try:
            listener = socket.create_server(
                address, family=family, backlog=_BACKLOG, dualstack_ipv6=wide
            )
        except OSError as error:
            problem = error
            if error.errno == errno.EADDRINUSE:
                break
        else:
            listener.setblocking(False)
            return listener
    raise _refusal(host, port, os.strerror(problem.errno or 0), problem.errno)


def _places(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    """Families, and an address of each as bind() takes it."""
    kind, passive = socket.SOCK_STREAM, socket.AI_PASSIVE
    try:
        found = socket.getaddrinfo(host or None, port, type=kind, flags=passive)
    except (OSError, UnicodeError) as error:
        raise _refusal(host, port, f"{host!r} has no address: {error}") from None
    places = [(family, address) for family, _, _, _, address in found]
    return sorted(places, key=lambda place: place[0], reverse=not host)  # AF_INET < AF_INET6


def _refusal(host: str, port: int, why: str, number: int | None = None) -> ConfigError:
    advice = "Give an address of this machine, or :PORT for all of them"
    if number == errno.EADDRINUSE:
        advice = f"`ss -ltnp sport = :{port}` shows who has it; give another port, or 0 for any"
    elif number == errno.EACCES:
        advice = "Give a port from 1024 on"
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return ConfigError(f"--metrics-port: cannot serve metrics on {at} ({why}). {advice}.")
