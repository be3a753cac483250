"""Chooses the addresses at which peers on other nodes connect, and the number of connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address

from torsh_runtime.contract import secret_text
from torsh_runtime.errors import ConfigError
from torsh_runtime.store.endpoint import TcpEndpoint, parse_endpoint

DEFAULT_STREAMS = 2
MAX_STREAMS = 64
SHORTEST_SECRET = 16
"""Bytes."""
_MASTER = "127.0.0.1"
_INTERFACE_VARIABLES = ("TORSH_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_OUTSIDE = ("192.0.2.1", "2001:db8::1")
"""Addresses for documentation (RFC 5737, RFC 3849): nobody's, so what leads there is the default
route. No packet is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Describes how a rank connects to ranks of other nodes."""

    secret: bytes = b""
    """The job's secret, which peers prove to know; if empty, they only prove to know the store."""
    interfaces: tuple[str, ...] = ()
    """Names of network interfaces, of which the first that exists is used; none: that of the
    route to `master`."""
    variable: str = _INTERFACE_VARIABLES[0]
    """The environment variable that named them."""
    streams: int = DEFAULT_STREAMS
    """Connections for data to each peer, besides the one for control."""
    master: str = _MASTER
    """Host of the job's first rank."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Network:
        """Read the job's secret, interfaces, number of connections and master from the environment.

        The variables are those of the secret, TORSH_SOCKET_IFNAME, GLOO_SOCKET_IFNAME,
        TORSH_SOCKET_STREAMS and MASTER_ADDR. Raises ConfigError naming the variable that is wrong.
        """
        variable = next((name for name in _INTERFACE_VARIABLES if environ.get(name)), None)
        names = environ[variable].split(",") if variable else []
        return cls(
            secret=secret_of(secret_text(environ)),
            interfaces=tuple(name.strip() for name in names if name.strip()),
            variable=variable or _INTERFACE_VARIABLES[0],
            streams=_streams(environ.get("TORSH_SOCKET_STREAMS", str(DEFAULT_STREAMS))),
            master=environ.get("MASTER_ADDR", _MASTER).strip("[]"),
        )

    def towards(self, endpoint: str) -> Network:
        """Return the same with the host of a store's endpoint as the master, if the endpoint has
        one.
        """
        where = parse_endpoint(endpoint) if endpoint else None
        return replace(self, master=where.host) if isinstance(where, TcpEndpoint) else self

    def addresses(self) -> list[str]:
        """Return this machine's addresses in the order in which peers should try them.

        Raises ConfigError if there are none.
        """
        return self._of_interface() if self.interfaces else self._by_route()

    def _of_interface(self) -> list[str]:
        from psutil import net_if_addrs

        existing = net_if_addrs()
        name = next((name for name in self.interfaces if name in existing), None)
        if name is None:
            raise ConfigError(
                f"{self.variable}={','.join(self.interfaces)} names no network interface of host "
                f"{socket.gethostname()}, which has {', '.join(sorted(existing))}"
            )
        families = (socket.AF_INET, socket.AF_INET6)
        found = [each for family in families for each in existing[name] if each.family == family]
        usable = [each.address for each in found if not _is_link_local(each.address)]
        if not usable:
            raise ConfigError(
                f"{self.variable} chose the network interface {name} of host "
                f"{socket.gethostname()}, which has no IPv4 address and no global IPv6 address: "
                f"give it one, or choose another interface"
            )
        return usable

    def _by_route(self) -> list[str]:
        found = list(_local_addresses([self.master]))
        if not found:
            raise ConfigError(
                f"host {socket.gethostname()} has no route to the master, {self.master}, or does "
                f"not know its address: correct MASTER_ADDR, or name a network interface in "
                f"{_INTERFACE_VARIABLES[0]}"
            )
        if is_loopback(found[0]):  # the master is here: where would the others find it?
            found = [*(list(_local_addresses(_OUTSIDE)) or _of_all_interfaces()), *found]
        return list(dict.fromkeys(found))


def secret_of(text: str) -> bytes:
    """Return the job's secret from its hexadecimal text; "" means none.

    Raises ConfigError if it is malformed, or so short that anyone who records one proof of it could
    find it by trying.
    """
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if text and len(secret) < SHORTEST_SECRET:
        raise ConfigError(
            f"TORSH_SECRET (of torshrun's workers TORSH_WORKER_SECRET) is no hexadecimal number of "
            f"{2 * SHORTEST_SECRET} digits or more; openssl rand -hex 32 makes a good one"
        )
    return secret


def is_loopback(address: str) -> bool:
    """Return whether only this machine can use the address."""
    return ip_address(address.partition("%")[0]).is_loopback


def listen(address: str) -> socket.socket:
    """Return a socket that listens at a free port of the address.

    Raises ConfigError if the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        listener.listen(4096)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on this machine's address {address}: {error}") from None
    return listener


def _local_addresses(hosts: Sequence[str]) -> Iterator[str]:
    """Yield this machine's address on the way to each of the hosts, if there is a way."""
    for host in hosts:
        with suppress(OSError):
            for family, _, _, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
                with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                    probe.connect(address)
                    yield probe.getsockname()[0]


def _of_all_interfaces() -> list[str]:
    """Return this machine's addresses that others can use, for when there is no default route."""
    from psutil import net_if_addrs

    families = (socket.AF_INET, socket.AF_INET6)
    found = [each for interface in net_if_addrs().values() for each in interface]
    usable = [each.address for family in families for each in found if each.family == family]
    return [each for each in usable if not (is_loopback(each) or _is_link_local(each))]


def _is_link_local(address: str) -> bool:
    """Return whether the address is of no use without the name of an interface."""
    return ":" in address and ip_address(address.partition("%")[0]).is_link_local


def _streams(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= MAX_STREAMS):
        raise ConfigError(f"TORSH_SOCKET_STREAMS={text!r} is not a number from 1 to {MAX_STREAMS}")
    return int(text)
