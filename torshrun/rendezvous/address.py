"""Addresses: this host's, as other nodes reach it, and lookups that nobody has to wait for."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from operator import itemgetter
from threading import Thread
from typing import ParamSpec, TypeVar

from torsh_runtime.errors import ConfigError
from torshrun.config.job import Address

P = ParamSpec("P")
T = TypeVar("T")
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses of documentation (RFC 5737, 3849): the way there is the way out. Nothing is sent."""


def routable(endpoints: Sequence[Address], *, may_be_private: bool = True) -> str:
    """Return this host's address on the way to the first endpoint that can be reached.

    It is IPv4 if the endpoint has both. It is a loopback address only if the endpoint's host is one
    itself, and `may_be_private` or there is nothing else: a host may know its own name as
    127.0.1.1, and one node may say localhost where others name this host. The call takes as long as
    the resolver does. Raise ConfigError if there is no way to any endpoint.
    """
    for host, port in endpoints:
        for family, address in sorted(resolve(host, port), key=itemgetter(0)):  # IPv4 < IPv6
            own = _source(family, address)
            if own and (not is_loopback(own) or (may_be_private and is_loopback(host))):
                return own
            if own:
                return _source(family, (_ELSEWHERE[family], 9)) or own
    names = ", ".join(host for host, _ in endpoints)
    raise ConfigError(
        f"there is no way from this host to {names}: see whether the name is right and the network "
        f"is up, or give this host's own address with --local-addr"
    )


def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    """Return a host's addresses of known families, each once; none if the host is unknown."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    known = ((family, address) for family, *_, address in found if family in _ELSEWHERE)
    return [*dict.fromkeys((family, (str(address[0]), port)) for family, address in known)]


def _source(family: int, address: tuple[str, int]) -> str:
    """Return the source address of packets to `address`; "" if there is no way."""
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
    return ""


def is_loopback(host: str) -> bool:
    """Return whether the host, a name or an address, can only be reached from itself."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


class _Detached(ThreadPoolExecutor):
    """Runs each call in its own daemon thread, which nothing waits for at exit."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # as an executor's
                future.set_exception(error)

        Thread(target=work, name="torsh-lookup", daemon=True).start()
        return future


def detach() -> None:
    """Have the running loop make its calls in threads that are not waited for: a resolver that
    hangs must not keep a command alive.
    """
    asyncio.get_running_loop().set_default_executor(_Detached())
