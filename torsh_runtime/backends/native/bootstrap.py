"""Connects the ranks of a group: within a node by memory, between nodes by TCP.

The store holds where each rank runs; each group needs keys of its own there:

    member/<rank>  its HostInfo
    link/<rank>    its Endpoint, in a group of several nodes
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from torsh_runtime.backends.base import BackendType, MeetingStore
from torsh_runtime.backends.bootstrap_store import BootstrapStore, post_abort
from torsh_runtime.backends.native import connections, segment
from torsh_runtime.backends.native.connections import Endpoint, Keys, Listeners
from torsh_runtime.backends.native.host_info import HostInfo, Terms, check_terms, layout, numbers
from torsh_runtime.backends.native.network import Network, is_loopback
from torsh_runtime.errors import (
    CommError,
    CommTimeout,
    PeerLost,
)
from torsh_runtime.transitions import Machine


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Holds the result of the rendezvous for a rank. It owns its descriptors: close it."""

    rank: int
    nodes: list[list[int]]
    """The ranks of each node, ascending; nodes in the order of their first ranks."""
    pids: list[int]
    """Pids of the ranks of this rank's node, in order of rank."""
    neighbours: int
    """The number of ranks on this machine, which is more than a node where it holds several."""
    file: int
    """Descriptor of the node's memory."""
    numbers: Sequence[int] = ()
    """The ranks in the launched job of the group's ranks; -1 for who is of another."""
    links: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """For each rank of another node non-blocking sockets: one for control, then those for data."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def take_links(self) -> dict[int, tuple[int, ...]]:
        """Return the connections, which belong to the caller from now on."""
        taken = dict(self.links)
        self.links.clear()
        return taken

    def close(self) -> None:
        """Close the descriptors. Only once: their numbers may soon be others'."""
        for descriptor in (self.file, *sum(self.links.values(), ())):
            os.close(descriptor)


def bootstrap(
    store: MeetingStore,
    rank: int,
    world_size: int,
    timeout: float,
    *,
    segment_sizes: Callable[[int], Sequence[int]],
    network: Network,
    terms: Terms,
    name: str = "",
) -> Bootstrap:
    """Connect to the group's other ranks through the store, whose keys must be fresh.

    segment_sizes: how many bytes so many ranks of a node may share, this rank's favourite first.
    terms: this rank's, to be compared with the others'.
    name: the group's; links of groups of different names do not mix.

    Raises CommTimeout naming the ranks that did not come within `timeout` seconds, PeerLost,
    CommError with the words of a rank that gave up, ConfigError for what this machine lacks and
    for terms that differ.
    """
    board = BootstrapStore(store, rank, timeout, BackendType.NATIVE)
    seen = Machine("meeting", "alone")
    try:
        with ExitStack() as holding, segment.Offer() as offer:
            own = HostInfo.here(offer.name, offer.token, terms)
            members = board.exchange("member", own.pack(), range(world_size))
            places = {peer: HostInfo.unpack(peer, data) for peer, data in members.items()}
            check_terms(places)
            nodes = layout(places)
            seen.become("sharing memory", f"{len(nodes)} nodes", group=name)
            local = {peer: places[peer] for node in nodes if rank in node for peer in node}
            memory = _share(board, offer, local, segment_sizes(len(local)), network.secret)
            holding.callback(os.close, memory)
            # Started by hand, the first rank serves the store: MASTER_ADDR need not be set.
            towards = network.towards(getattr(store, "endpoint", ""))
            seen.become("linking", f"{len(local)} ranks in this node", group=name)
            linked = _link(board, places, towards, name)
            holding.pop_all()
            seen.become("met", group=name)
    except BaseException as error:
        seen.become("given up", type(error).__name__, group=name)
        post_abort(store, rank, error)
        raise
    pids = [place.pid for place in local.values()]
    machines = [place.machine for place in places.values()]
    neighbours = machines.count(own.machine)
    return Bootstrap(rank, nodes, pids, neighbours, memory, numbers(own, places), linked)


def _share(
    board: BootstrapStore,
    offer: segment.Offer,
    places: Mapping[int, HostInfo],
    sizes: Sequence[int],
    secret: bytes,
) -> int:
    """Return the descriptor of the node's memory."""
    try:
        return segment.share(offer, board.rank, places, sizes, board.remaining(), secret)
    except (PeerLost, CommTimeout):
        raise
    except CommError:  # whoever was to hand it out has given up
        board.read_abort_reason()
        raise


def _link(
    board: BootstrapStore, places: Mapping[int, HostInfo], network: Network, name: str
) -> dict[int, tuple[int, ...]]:
    """Return connections to the ranks of other nodes, by rank."""
    own = places[board.rank]
    if all(place.node == own.node for place in places.values()):
        return {}
    with Listeners.opened(network) as doors:
        told = board.exchange("link", doors.contact.pack(), places)
        contacts = {
            peer: _usable(peer, Endpoint.unpack(peer, told[peer]), place, own)
            for peer, place in places.items()
            if place.node != own.node
        }
        keys = Keys(network.secret, name)
        return connections.connect_all(
            board.rank, doors, contacts, keys, board.remaining(), board.look_around
        )


def _usable(peer: int, contact: Endpoint, place: HostInfo, own: HostInfo) -> Endpoint:
    """Return the contact with only those addresses that this rank can reach.

    Raises CommError if there are none.
    """
    if (place.machine, place.network) == (own.machine, own.network):
        return contact
    addresses = [each for each in contact.addresses if not is_loopback(each[0])]
    if not addresses:
        raise CommError(
            f"rank {peer} on host {place.host} listens only at {contact.addresses[0][0]}, where "
            f"other machines do not find it. Set MASTER_ADDR to an address that all nodes can "
            f"reach, or name a network interface in TORSH_SOCKET_IFNAME."
        )
    return replace(contact, addresses=addresses)
