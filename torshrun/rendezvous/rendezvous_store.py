"""The store where the nodes meet: etcd's, or one that the agent of one node serves."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from torsh_runtime.errors import RendezvousTimeout, StoreError
from torsh_runtime.store.base import Entry, Store
from torsh_runtime.store.endpoint import TcpEndpoint
from torsh_runtime.store.keys import derive
from torsh_runtime.store.memory import MemoryStore
from torsh_runtime.store.remote import RemoteStore
from torsh_runtime.store.server import StoreServer
from torshrun.procfs import listener
from torshrun.rendezvous import rows
from torshrun.rendezvous.address import is_loopback, resolve
from torshrun.rendezvous.asking import REQUEST_TIMEOUT

if TYPE_CHECKING:
    from torshrun.config.job import RendezvousConfig

T = TypeVar("T")

LINGER = 5.0
"""Seconds at most that a store is still served to nodes that have not read how the job ended."""
_PAUSES = (0.05, 1.0)  # seconds between two attempts, the first and the longest

_A_WHILE = 0.5  # seconds after which people are told what is waited for

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RendezvousStore:
    """The store, for as long as this node needs it. Make it with `open`, and close it."""

    name: str
    """Name of the store, for people."""
    store: Store
    server: StoreServer | None = None
    """Server of the store, if it runs in this agent and ends with it."""

    @property
    def is_host(self) -> bool:
        """Return whether the store is served here."""
        return self.server is not None

    @classmethod
    async def open(
        cls, config: RendezvousConfig, say: Say, on_refused: Say = lambda why: None
    ) -> RendezvousStore:
        """Connect to the store, or serve it, within the join timeout.

        `say` is called with what it waits for, and `on_refused`, if the store is served here, with
        who was turned away. Raise RendezvousTimeout if there was none, StoreError if it refused
        this node, and ConfigError.
        """
        if config.backend == "etcd":
            return await _open_etcd(config)
        return await _open_tcp(config, say, on_refused)

    async def linger(self, signed: Store, run_id: str) -> None:
        """Wait until no node is registered any more, if the store is served here.

        It waits LINGER seconds at most. `signed` is the store as the nodes write and read there.
        """
        if self.is_host:
            with suppress(TimeoutError, StoreError):
                async with asyncio.timeout(LINGER):
                    await _until_left(signed, rows.base(run_id) + rows.NODES)

    async def close(self) -> None:
        """Let go of the store; if it is served here it ends."""
        if self.server:
            await self.server.close()
        await self.store.close()


async def patiently(
    what: str,
    attempt: Callable[[], Awaitable[T]],
    timeout: float,
    say: Say,
    hint: Callable[[], str] = lambda: "",
) -> T:
    """Try until it works.

    Raise RendezvousTimeout after `timeout` seconds, with the last reason; `say` is called with one
    once it takes a while. A StoreError that has no OSError behind it is final. `hint` adds to the
    reasons.
    """
    clock = asyncio.get_running_loop().time
    began, pause, told = clock(), _PAUSES[0], False
    while True:
        try:
            return await attempt()
        except (StoreError, OSError) as error:
            if not _may_pass(error):
                raise
            if clock() + pause >= began + timeout:
                why = f"{error}{hint()}"
                raise RendezvousTimeout(f"{what} could not be reached in {timeout:g} s: {why}")
            if not told and clock() - began > _A_WHILE:
                told = True
                say(f"waiting for {what}: {error}{hint()}")
        await asyncio.sleep(pause)
        pause = min(2 * pause, _PAUSES[1])


def _may_pass(error: Exception) -> bool:
    """Return whether another attempt may succeed."""
    return isinstance(error, OSError) or isinstance(error.__cause__, OSError | EOFError)


async def _until_left(store: Store, prefix: str) -> None:
    """Wait until all nodes have left. The rows of those that did stay for a while, to be read."""
    while True:
        listing = await store.list(prefix)
        if all(map(_has_left, listing.items)):
            return
        async with aclosing(store.watch(prefix, listing.revision)) as changes:
            await anext(changes)


def _request_timeout(config: RendezvousConfig) -> float:
    """Return the seconds a request may take.

    They are fewer than usual if lost nodes are to be found sooner.
    """
    return min(REQUEST_TIMEOUT, config.ttl / 2)


def _has_left(entry: Entry) -> bool:
    row = rows.decode(rows.NodeRow, entry.value)
    return row is not None and row.state == "left"


async def _open_etcd(config: RendezvousConfig) -> RendezvousStore:
    from torsh_runtime.store.etcd import EtcdConfig, EtcdStore

    access = config.access
    scheme = "https" if access.tls else "http"
    etcd = EtcdConfig(
        endpoints=tuple(f"{scheme}://{endpoint}" for endpoint in config.endpoints),
        ca=access.cacert or None,
        cert=access.cert or None,
        key=access.key or None,
        user=access.user or None,
        password=access.password or None,
        request_timeout=_request_timeout(config),
    )
    return RendezvousStore(f"etcd at {', '.join(etcd.endpoints)}", EtcdStore(etcd))


# ---- the store that an agent serves


def store_key(secret: str) -> bytes:
    """Return the key that clients of a store served by an agent prove they have."""
    return derive(secret.encode(), "store")


async def _open_tcp(config: RendezvousConfig, say: Say, on_refused: Say) -> RendezvousStore:
    (address,) = config.endpoints
    may_host = _must_host(config) or (config.backend == "tcp" and config.is_host is None)
    is_taken = False

    async def attempt() -> RendezvousStore:
        nonlocal is_taken
        hosted, is_taken = await _host(config, on_refused) if may_host else (None, False)
        return hosted or await join(config, _request_timeout(config))

    def hint() -> str:
        return f" (the port is held by {listener(address.port)} on this host)" if is_taken else ""

    host = "node rank 0" if config.backend == "static" else "the host of that name"
    what = f"the store at {address} (served by the agent on {host})"
    return await patiently(what, attempt, config.join_timeout, say, hint)


def _must_host(config: RendezvousConfig) -> bool:
    return bool(config.is_host) or (config.backend == "static" and config.node_rank == 0)


async def _host(config: RendezvousConfig, on_refused: Say) -> tuple[RendezvousStore | None, bool]:
    """Serve the store, if no node serves there yet, and this one is to.

    It is to if the address is this host's, or if the options say so. Otherwise return whether the
    port is taken. The store is served on every address, as others may know this host by another,
    but on loopback alone if that is the address and there is no secret.
    """
    (address,) = config.endpoints
    is_taken = False
    for family, place in await asyncio.to_thread(resolve, *address):
        obstacle = _obstacle(family, place)
        is_taken = is_taken or obstacle == errno.EADDRINUSE
        if obstacle:
            continue
        everywhere = "::" if family == socket.AF_INET6 else "0.0.0.0"
        is_private = is_loopback(place[0]) and not config.secret
        for host in (place[0],) if is_private else (everywhere, place[0]):
            with suppress(StoreError):  # somebody was faster, or holds the port elsewhere
                return await _serve(config, host, on_refused), False
    if _must_host(config) and not is_taken:  # a name or an address that leads here by way of others
        return await _serve(config, "0.0.0.0", on_refused), False
    return None, is_taken


def _obstacle(family: int, place: tuple[str, int]) -> int:
    """Return the errno with which listening on the address fails; 0 if it works."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            return error.errno or errno.EADDRNOTAVAIL
        return 0


async def _serve(config: RendezvousConfig, host: str, on_refused: Say) -> RendezvousStore:
    store = MemoryStore()
    server = StoreServer(store, store_key(config.secret), on_refused=on_refused)
    await server.start(str(TcpEndpoint(host, config.endpoints[0].port)))
    return RendezvousStore("the store of this agent", store, server)


async def join(config: RendezvousConfig, timeout: float) -> RendezvousStore:
    """Return the store that another agent serves; a request may take `timeout` seconds.

    Raise StoreError if it does not answer.
    """
    (address,) = config.endpoints
    store = RemoteStore(str(TcpEndpoint(*address)), store_key(config.secret), timeout)
    try:
        await store.get(rows.base(""))
    except BaseException:
        await store.close()
        raise
    return RendezvousStore(f"the store at {address}", store)
