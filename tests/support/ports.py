"""TCP ports for tests."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from torshrun.rendezvous.ports import HeldPorts

_LEAST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Of ports that the kernel gives to whoever asks for any, and to connections."""
_MOST_TRIED = 1000
"""Ports, before a test is told that there are too few."""


def free_ports(count: int) -> list[int]:
    """Different ports that nobody holds, and that the kernel gives to nobody else meanwhile if it
    keeps any to be asked for. OSError if there are not so many among those that are tried.
    """
    first, last = map(int, _RANGE.read_text().split())
    every = range(_LEAST, 65_536)
    ports = [port for port in every if not first <= port <= last] or every
    found: list[int] = []
    with ExitStack() as stack:
        # Forks of a process draw different ones.
        for port in random.SystemRandom().sample(ports, min(len(ports), _MOST_TRIED)):
            with suppress(OSError):
                stack.enter_context(socket.create_server(("", port)))
                found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"of {_MOST_TRIED} ports {len(found)} are free; {count} are needed")


def free_port() -> int:
    """One of those."""
    return free_ports(1)[0]


def free_address() -> str:
    """An init_method with one."""
    return f"tcp://127.0.0.1:{free_port()}"


class GivenPorts(HeldPorts):
    """Holds none: the port is the one that is wanted, and any port is 2."""

    def take(self, wanted: int = 0) -> tuple[int, int]:
        return wanted or 2, 2
