"""Blocking connects, and the options that both ends of a store's connection set."""

from __future__ import annotations

import socket
import time

from torsh_runtime.store.endpoint import Endpoint, UnixEndpoint

FULL_PAUSE = 0.005
"""Seconds between attempts to connect to a Unix socket whose queue of connections is full."""


def remaining(deadline: float) -> float:
    """Return the seconds until the deadline of time.monotonic(), at most 1e6, which sockets accept.

    Raises TimeoutError when the deadline has passed.
    """
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the deadline has passed")
    return min(seconds, 1e6)


def connect(endpoint: Endpoint, deadline: float) -> socket.socket:
    """Connect, trying each address of the host once. Raises the last OSError when all fail.

    The deadline does not limit the look-up of the host's name, which the resolver limits.
    """
    if isinstance(endpoint, UnixEndpoint):
        return _connect_to(socket.AF_UNIX, endpoint.address, deadline)
    failure = OSError(f"{endpoint.host} has no address")
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    for family, _, _, _, address in found:
        try:
            return _connect_to(family, address, deadline)
        except OSError as error:
            failure = error
    try:
        raise failure
    finally:
        del failure  # else it and its traceback keep each other, and every frame below, alive


def _connect_to(family: int, address: str | tuple[object, ...], deadline: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        while True:
            sock.settimeout(remaining(deadline))
            try:
                sock.connect(address)
                break
            except BlockingIOError:  # this Unix socket's queue is full
                time.sleep(FULL_PAUSE)
        check_not_itself(sock)
        tune(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def check_not_itself(sock: socket.socket) -> None:
    """Raise ConnectionRefusedError if the socket is connected to itself.

    That happens where no process listens and the kernel gave the socket the very port that it
    connects to.
    """
    if sock.family != socket.AF_UNIX and sock.getsockname() == sock.getpeername():
        raise ConnectionRefusedError("the socket connected to itself")


def tune(sock: socket.socket) -> None:
    """Send small frames at once, and notice within about a minute that the peer's host is gone."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
