"""Examines whether the ports that a job would listen on here are free, and what holds them."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torshrun.config.job import RendezvousConfig
from torshrun.ctl.doctor.finding import Finding, note, ok, warning
from torshrun.procfs import ROOT, listener, read_text
from torshrun.rendezvous.address import resolve


@dataclass(frozen=True, slots=True)
class Port:
    """Describes a port that a job would listen on."""

    what: str
    """The option or variable that sets it."""
    number: int
    obstacle: int
    """The errno of binding it, or 0 if it is free."""
    holder: str = ""
    """The process that holds it, in words."""


@dataclass(frozen=True, slots=True)
class Ports:
    wanted: tuple[Port, ...]
    ephemeral: tuple[int, int]
    """The range of ports for outgoing connections, or (0, 0) if unknown."""


def gather(
    environ: Mapping[str, str],
    master_port: int | None,
    rendezvous: RendezvousConfig | None,
    root: Path = ROOT,
) -> Ports:
    """Try to bind the ports. `master_port` is the value of the option."""
    wanted = dict(_wanted(environ, master_port, rendezvous))
    limits = read_text(root / "proc/sys/net/ipv4/ip_local_port_range").split()
    ephemeral = (int(limits[0]), int(limits[1])) if len(limits) == 2 else (0, 0)
    return Ports(tuple(_look(what, number) for what, number in wanted.items()), ephemeral)


def _wanted(
    environ: Mapping[str, str], master_port: int | None, rendezvous: RendezvousConfig | None
) -> Iterator[tuple[str, int]]:
    text = environ.get("MASTER_PORT", "")
    if re.fullmatch(r"[0-9]{1,5}", text) and 0 < int(text) < 65536:
        yield "MASTER_PORT", int(text)
    if master_port:
        yield "--master-port", master_port
    if rendezvous and rendezvous.backend != "etcd":
        (endpoint,) = rendezvous.endpoints
        if _is_here(endpoint.host, endpoint.port):
            yield "--rdzv-endpoint", endpoint.port


def _is_here(host: str, port: int) -> bool:
    """Return whether the host has an address of this machine."""
    for family, (address, _) in resolve(host, port):
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
            return True
    return False


def _look(what: str, number: int) -> Port:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", number))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            return Port(what, number, error.errno or errno.EPERM, _holder(number) if taken else "")
    return Port(what, number, 0)


def _holder(number: int) -> str:
    try:
        return listener(number)
    except (OSError, RuntimeError):  # this process may not read /proc/net
        return "a process that cannot be seen from here"


def check(facts: Ports) -> Iterator[Finding]:
    first, last = facts.ephemeral
    for port in facts.wanted:
        yield _one(port, is_ephemeral=first <= port.number <= last)
    if last:
        yield ok("ports of outgoing connections", f"{first} to {last}")


def _one(port: Port, *, is_ephemeral: bool) -> Finding:
    what = f"port {port.number} ({port.what})"
    if port.obstacle == errno.EADDRINUSE:
        if port.what == "--rdzv-endpoint":
            return note(
                what,
                f"held by {port.holder}",
                "Right if that is the job's own agent; otherwise give another port in "
                "--rdzv-endpoint, or end that process.",
            )
        return warning(
            what,
            f"held by {port.holder}",
            "End that process, or take another port; without --master-port torshrun finds a free "
            "one for each start.",
        )
    if port.obstacle:
        why = f"cannot be bound: {errno.errorcode.get(port.obstacle, port.obstacle)}"
        return warning(what, why, "Take a port above 1024 that this user may bind.")
    if is_ephemeral:
        return note(
            what,
            "free, but in the range of outgoing connections",
            "Any connection may take it before the job does: choose one outside the range "
            "(net.ipv4.ip_local_port_range), or none at all.",
        )
    return ok(what, "free")
