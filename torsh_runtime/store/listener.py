"""Binds the socket that a StoreServer listens on."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

from torsh_runtime.errors import ConfigError, StoreError
from torsh_runtime.store.endpoint import Endpoint, TcpEndpoint, UnixEndpoint, parse_endpoint

BACKLOG = 4096  # thousands of workers may connect at once; the kernel caps it at somaxconn


async def listen_on(text: str) -> tuple[socket.socket, Endpoint]:
    """Return a listening socket and its endpoint, with port 0 replaced by the actual port.

    Raises ConfigError when the text is no endpoint or its host is unknown; StoreError when it
    cannot be bound, for example because another process listens there.
    """
    endpoint = parse_endpoint(text)
    if isinstance(endpoint, UnixEndpoint):
        sock = _bound(endpoint, socket.AF_UNIX, lambda sock: _bind_unix(sock, endpoint))
        return sock, endpoint
    family, address = await _resolve(endpoint)
    sock = _bound(endpoint, family, lambda sock: _bind_tcp(sock, address))
    return sock, TcpEndpoint(endpoint.host, sock.getsockname()[1])


async def _resolve(endpoint: TcpEndpoint) -> tuple[int, tuple[object, ...]]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {endpoint}: the host {endpoint.host!r} is unknown here ({error}). "
            f"Name an address of this machine."
        ) from None
    if _is_known_elsewhere(endpoint.host, [each[4] for each in found]):
        if any(each[0] == socket.AF_INET6 for each in found):
            return socket.AF_INET6, ("::", endpoint.port)
        return socket.AF_INET, ("0.0.0.0", endpoint.port)
    return found[0][0], found[0][4]


def _is_known_elsewhere(host: str, addresses: list[tuple[object, ...]]) -> bool:
    """Return whether `host` is this machine's own name and only it resolves that to a loopback
    address.

    Debian resolves a machine's own name to 127.0.1.1 (/etc/hosts); other machines resolve it to a
    reachable address.
    """
    own, asked = (name.lower().partition(".")[0] for name in (socket.gethostname(), host))
    is_own = asked == own and own != "localhost"
    return is_own and all(ip_address(str(each[0])).is_loopback for each in addresses)


def _bound(endpoint: Endpoint, family: int, bind: Callable[[socket.socket], None]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        bind(sock)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        hint = "another process listens there; choose another endpoint or end that process"
        why = hint if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise StoreError(f"cannot listen on {endpoint}: {why}") from None
    return sock


def _bind_tcp(sock: socket.socket, address: tuple[object, ...]) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
    sock.bind(address)


def _bind_unix(sock: socket.socket, endpoint: UnixEndpoint) -> None:
    try:
        sock.bind(endpoint.address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not _is_stale(endpoint):
            raise
        Path(endpoint.path).unlink()
        sock.bind(endpoint.address)
    if not endpoint.path.startswith("@"):
        Path(endpoint.path).chmod(0o600)


def _is_stale(endpoint: UnixEndpoint) -> bool:
    """Return whether the path is a socket that a dead process left behind."""
    if endpoint.path.startswith("@") or not Path(endpoint.path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(endpoint.address) == errno.ECONNREFUSED
