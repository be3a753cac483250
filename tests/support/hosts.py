"""Hosts on one machine: network namespaces, each with an interface at a common switch.

They have no names: each lives as long as a process in it, which ends when this one does. So
nothing can be left behind, however a test ends. All of this needs root.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.processes import soon

INTERFACE = "plug"
_GUARD = 20.0
_CLONE_NEWNET = 0x40000000
_TOOLS = {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
"""Debian's packages of them."""


def hindrance() -> str:
    """Why there can be no hosts here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool, package in _TOOLS.items():
        if not shutil.which(tool):
            return f"{tool} is not installed (apt-get install {package})"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return tried.stderr.strip() and f"no network namespaces here: {tried.stderr.strip()}"


_WHY_NOT = hindrance()
needs_hosts = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)


def needs_address(name: str) -> pytest.MarkDecorator:
    """Minimal systems have no /etc/hosts."""
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        return pytest.mark.skipif(True, reason=f"{name} has no address, see /etc/hosts: {error}")
    return pytest.mark.skipif(False, reason="it has one")


@dataclass(frozen=True, slots=True)
class Host:
    """One of them; it is there while its holder, a process, lives."""

    holder: int
    number: int
    """From 1."""

    @property
    def ipv4(self) -> str:
        return f"10.77.0.{self.number}"

    @property
    def ipv6(self) -> str:
        return f"fd77::{self.number}"

    @property
    def command(self) -> list[str]:
        """What stands before a command that is to run there."""
        return ["nsenter", f"--net=/proc/{self.holder}/ns/net"]

    def enter(self) -> None:
        """Move this thread there, for good."""
        with Path(f"/proc/{self.holder}/ns/net").open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")


@contextmanager
def plugged(count: int) -> Iterator[list[Host]]:
    """So many hosts that reach each other."""
    with ExitStack() as stack:
        switch = Host(_hold(stack), 0)
        found = [Host(_hold(stack), number) for number in range(1, count + 1)]
        _ip(switch, "link add switch type bridge", "link set switch up")
        for host in found:
            port = f"port{host.number}"
            peer = f"peer name {INTERFACE} netns {host.holder}"
            _ip(switch, f"link add {port} type veth {peer}", f"link set {port} master switch up")
            _ip(
                host,
                f"address add {host.ipv4}/24 dev {INTERFACE}",
                f"address add {host.ipv6}/64 dev {INTERFACE} nodad",
                "link set lo up",
                f"link set {INTERFACE} up",
            )
        yield found


def cut_off(host: Host) -> None:
    """Nothing reaches the host any more, and nobody is told."""
    _ip(host, f"link set {INTERFACE} down")


def plug_in_again(host: Host) -> None:
    """The counterpart of cut_off. An interface that was down has lost its IPv6 address."""
    _ip(
        host,
        f"link set {INTERFACE} up",
        f"address replace {host.ipv6}/64 dev {INTERFACE} nodad",
    )


def run_on_hosts(
    places: Sequence[Host],
    body: Callable[[int], Any],
    timeout: float = 30.0,
    secret: str = secrets.token_hex(16),
    meanwhile: Callable[[list[int]], None] | None = None,
) -> list[Any]:
    """body(rank) in a process on places[rank], with a default group of all of them. Otherwise as
    worlds.run_processes.
    """
    from support.forked import run_forked
    from support.worlds import be_rank

    def start(rank: int) -> Any:
        os.environ.update({"TORSH_SECRET": secret} if secret else {})
        places[rank].enter()
        return be_rank(rank, len(places), body, f"tcp://{places[0].ipv4}:29500", timeout)

    return run_forked(len(places), start, meanwhile)


def _hold(stack: ExitStack) -> int:
    """The pid of a process in a network namespace of its own; its input's end is its end."""
    holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
    stack.enter_context(holder)
    own, here = Path(f"/proc/{holder.pid}/ns/net"), Path("/proc/self/ns/net").readlink()
    soon(lambda: own.readlink() != here, _GUARD)
    return holder.pid


def _ip(host: Host, *lines: str) -> None:
    subprocess.run(
        [*host.command, "ip", "-batch", "-"],
        input="\n".join(lines),
        text=True,
        check=True,
        timeout=_GUARD,
    )
