"""Examines the network interfaces, and the address that other nodes would use for this one."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torsh_runtime.errors import ConfigError
from torshrun.config.job import Address
from torshrun.ctl.doctor.finding import Finding, note, ok, problem, warning
from torshrun.rendezvous.address import is_loopback, routable

ANYWHERE = (Address("192.0.2.1", 9), Address("2001:db8::1", 9))
"""Addresses reserved for documentation. The route to them is the default route."""
CHOSEN_BY = ("TORSH_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_SLOW = 1000  # Mb/s
_OF_CONTAINERS = ("docker", "br-", "virbr", "cni", "flannel", "podman", "lxc")


@dataclass(frozen=True, slots=True)
class Interface:
    name: str
    addresses: tuple[str, ...]
    is_up: bool
    speed: int
    """Mb/s, or 0 if the interface does not report it."""
    mtu: int
    """Bytes, or 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Network:
    interfaces: tuple[Interface, ...]
    failure: str
    """The reason why the interfaces could not be listed. Empty if they could."""
    chosen: str
    """The address that other nodes would be given. Empty if there is no route."""
    towards: str
    """The destination of that route, for people."""
    named: Mapping[str, str]
    """The variables of CHOSEN_BY that are set."""


def gather(endpoints: Sequence[Address], environ: Mapping[str, str]) -> Network:
    try:
        interfaces, failure = _interfaces(), ""
    except (OSError, RuntimeError) as error:
        interfaces, failure = (), str(error)
    try:
        chosen = routable(endpoints or ANYWHERE)
    except ConfigError:
        chosen = ""
    towards = ", ".join(map(str, endpoints)) or "other networks"
    named = {name: environ[name] for name in CHOSEN_BY if environ.get(name)}
    return Network(interfaces, failure, chosen, towards, named)


def _interfaces() -> tuple[Interface, ...]:
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    stats = psutil.net_if_stats()
    return tuple(
        Interface(
            name=name,
            addresses=tuple(each.address for each in found if each.family in families),
            is_up=stats[name].isup if name in stats else False,
            speed=stats[name].speed if name in stats else 0,
            mtu=stats[name].mtu if name in stats else 0,
        )
        for name, found in psutil.net_if_addrs().items()
    )


def check(facts: Network) -> Iterator[Finding]:
    if facts.failure:
        yield note(
            "interfaces",
            f"cannot be listed: {facts.failure}",
            "Nothing, if jobs run: let this process read /sys/class/net to see them here.",
        )
    for interface in facts.interfaces:
        yield ok(interface.name, _described(interface))
    yield _chosen(facts)
    for variable, wanted in facts.named.items():
        yield from _named(variable, wanted, facts.interfaces)


def _described(interface: Interface) -> str:
    addresses = ", ".join(interface.addresses) or "no address"
    speed = f"{interface.speed} Mb/s" if interface.speed > 0 else "speed unknown"
    return f"{addresses}; {'up' if interface.is_up else 'down'}, {speed}, MTU {interface.mtu}"


def _chosen(facts: Network) -> Finding:
    what = "address for other nodes"
    if not facts.chosen:
        return warning(
            what,
            f"none: there is no route to {facts.towards}",
            "See whether the network is up and the endpoint's name is right, or give this host's "
            "own address (torshrun --local-addr). Jobs of one node need none.",
        )
    owner = next((each for each in facts.interfaces if facts.chosen in each.addresses), None)
    value = f"{facts.chosen} ({owner.name if owner else 'interface unknown'}), to {facts.towards}"
    if is_loopback(facts.chosen):
        return note(
            what,
            value,
            "Nodes on other hosts cannot reach it: name the endpoint by an address that they "
            "know, unless all agents run on this host.",
        )
    if owner and owner.name.startswith(_OF_CONTAINERS):
        return warning(
            what,
            value,
            "It is a bridge of containers: give --local-addr if others cannot reach it.",
        )
    if owner and 0 < owner.speed < _SLOW:
        return note(
            what, value, "It is slow; name the endpoint in a faster network if there is one."
        )
    return ok(what, value)


def _named(variable: str, wanted: str, interfaces: Sequence[Interface]) -> Iterator[Finding]:
    """Yield a problem if the interface that a variable names does not exist.

    NCCL takes prefixes, exact names after "=", and names to leave out after "^". The others take
    names. If several are named, the first that exists counts.
    """
    if wanted.startswith("^") or not interfaces:
        return
    exact = wanted.startswith("=") or not variable.startswith("NCCL")
    names = [name.partition(":")[0] for name in wanted.removeprefix("=").split(",")]
    there = [each.name for each in interfaces]
    if not any(own == name if exact else own.startswith(name) for own in there for name in names):
        told = f"{wanted}: there is no such interface (there are {', '.join(there)})"
        yield problem(variable, told, f"Correct or unset {variable}: workers fail to connect.")
