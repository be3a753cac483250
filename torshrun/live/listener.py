"""A listening socket for the agent's HTTP endpoint."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

from torsh_runtime.errors import ConfigError


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """A non-blocking listening socket; port 0 is any.

    `host` is a name, an IPv4 or IPv6 address, or "" for all addresses of both families. A name with
    addresses of both is served on IPv4, where clients of either look. Raises ConfigError.
    """
    problem = OSError(errno.EADDRNOTAVAIL, "")
    for family, address in _places(host, port):
        wide = not host and family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        try:
            listener = socket.create_server(
                address, family=family, backlog=backlog, dualstack_ipv6=wide
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
