"""Examines name resolution in both directions, for this host and for peers and endpoints."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from torshrun.ctl.doctor.deadlines import all_within
from torshrun.ctl.doctor.finding import Finding, note, ok, problem, warning
from torshrun.rendezvous.address import is_loopback


@dataclass(frozen=True, slots=True)
class Lookup:
    """Holds the result of looking up a name."""

    name: str
    addresses: tuple[str, ...]
    failure: str = ""
    """The reason why there are no addresses. Empty if there are."""
    back: str = ""
    """The name of the first address. Empty if it has none, or was not looked up."""


@dataclass(frozen=True, slots=True)
class Names:
    own: Lookup
    others: tuple[Lookup, ...]


def gather(others: Sequence[str], seconds: float) -> Names:
    """Look up the names, with `seconds` for each direction.

    `others` are the hosts of peers and endpoints.
    """
    own = socket.gethostname()
    names = [own, *dict.fromkeys(name for name in others if name != own)]
    there = all_within(seconds, {name: partial(_addresses, name) for name in names})
    known = {name: found[0] for name, found in there.items() if isinstance(found, tuple)}
    back = all_within(seconds, {name: partial(_name, first) for name, first in known.items()})
    first, *rest = (_lookup(name, there[name], back.get(name, "")) for name in names)
    return Names(first, tuple(rest))


def _addresses(name: str) -> tuple[str, ...]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(each[4][0]) for each in found))


def _name(address: str) -> str:
    return socket.gethostbyaddr(address)[0]


def _lookup(name: str, there: tuple[str, ...] | Exception, back: str | Exception) -> Lookup:
    if isinstance(there, Exception):
        return Lookup(name, (), getattr(there, "strerror", None) or str(there))
    return Lookup(name, there, back="" if isinstance(back, Exception) else back)


def check(facts: Names) -> Iterator[Finding]:
    yield _own(facts.own)
    for lookup in facts.others:
        yield _other(lookup)


def _own(own: Lookup) -> Finding:
    what = "this host's name"
    if own.failure:
        return warning(
            what,
            f"{own.name} is unknown here: {own.failure}",
            "Add it to /etc/hosts or DNS: torchrun, MPI and Gloo look it up. torshrun does not, "
            "with --rdzv-endpoint by address.",
        )
    value = f"{own.name}: {_both_ways(own)}"
    if all(map(is_loopback, own.addresses)):
        return note(
            what,
            value,
            "The name means this address only here: as MASTER_ADDR, and where Gloo or MPI announce "
            "it, other hosts would connect to themselves. Give its address in /etc/hosts instead "
            "of 127.0.1.1, or name it by address.",
        )
    return ok(what, value)


def _other(lookup: Lookup) -> Finding:
    if lookup.failure:
        return problem(
            lookup.name,
            f"is unknown here: {lookup.failure}",
            "Correct the name, add it to /etc/hosts or DNS, or give an address.",
        )
    return ok(lookup.name, _both_ways(lookup))


def _both_ways(lookup: Lookup) -> str:
    back = f", which is called {lookup.back}" if lookup.back else ", which has no name"
    return ", ".join(lookup.addresses) + back
