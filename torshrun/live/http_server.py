"""HttpServer: answers one request on each connection, whatever other clients do or leave undone."""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torsh_runtime.connections.acceptor import CpuBudget
from torsh_runtime.connections.multiplexer import (
    ConnectionMultiplexer,
    ProtocolCoroutine,
    receive_some,
    send,
)
from torsh_runtime.errors import ConfigError
from torshrun.config.job import Address

MOST_VISITS = 64
"""Connections from this host that are open at a time, and from others."""
VISIT_SECONDS = 5.0
"""Seconds that a connection may take in all."""
LONGEST_REQUEST = 16384
"""Bytes of a request, with its headers, that are looked at."""
CLOSE_SECONDS = 1.0
"""Seconds that close() waits for the thread."""
_PAUSE = 0.1  # seconds until the next attempt when the process has no descriptor left
_IDLE_SECONDS = 3600.0
_BLANK = re.compile(rb"\n\r?\n")
_BACKLOG = 4096

Respond = Callable[[bytes], bytes]
"""Makes a response of what came up to the empty line, or of LONGEST_REQUEST bytes without one."""


class HttpServer:
    """Serves in one thread of its own.

    No client, whether idle, slow or one of very many, locks out others, and all of them together
    cost no more than a share of one CPU.
    """

    def __init__(self, host: str, port: int, respond: Respond) -> None:
        """Listen. `host` is a name, an IPv4 or IPv6 address, or "" for every address; port 0 is
        any. Raises ConfigError if the address cannot be had. Clients wait until start().
        """
        self._listener = listen(host.removeprefix("[").removesuffix("]"), port)
        self._respond = respond
        self._visits = ConnectionMultiplexer(VISIT_SECONDS, MOST_VISITS)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torsh-http", daemon=True)

    @property
    def url(self) -> str:
        """Return where it serves, as in "http://127.0.0.1:9090"."""
        return f"http://{Address(*self._listener.getsockname()[:2])}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End all connections, within bounded time."""
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)
        else:
            self._visits.close()
        self._listener.close()

    def _run(self) -> None:
        budget = CpuBudget()
        with self._visits as visits:
            visits.listen(self._listener, self._serve)
            while not self._closing.is_set():
                pause, began = 0.0, time.thread_time()
                try:
                    for visit in visits.turn(_IDLE_SECONDS):
                        visit.sock.close()
                except OSError:  # the process has no descriptor left, and none of them is ours
                    pause = _PAUSE
                spent = time.thread_time() - began
                self._closing.wait(max(pause, budget.pause(spent, time.monotonic())))

    def _serve(self, connection: socket.socket) -> ProtocolCoroutine:
        request = b""
        while not (blank := _BLANK.search(request)) and len(request) < LONGEST_REQUEST:
            request += yield from receive_some(connection, LONGEST_REQUEST)
        end = blank.end() if blank else LONGEST_REQUEST
        yield from send(connection, self._respond(request[:end]))
        connection.shutdown(socket.SHUT_WR)
        while True:  # closed over unread data a connection may lose the response
            yield from receive_some(connection, LONGEST_REQUEST)


def listen(host: str, port: int) -> socket.socket:
    """Return a non-blocking listening socket; port 0 is any.

    `host` is a name, an address, or "" for all of both families; a name with addresses of both is
    served on IPv4, where clients of either look. Raises ConfigError.
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
    """Return families, and an address of each as bind() takes it."""
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
    at = Address(host, port)
    return ConfigError(f"--metrics-port: cannot serve metrics on {at} ({why}). {advice}.")
