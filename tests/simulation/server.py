"""A virtual etcd: leases that outlive their ttl, compaction, outages, loss of what it held."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from typing import Any

from simulation.codec import Codec
from simulation.network import STORE, Network
from simulation.oracles import Commit, Oracles

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Compare, Event, Outcome, Put, Write
from torsh_runtime.store.state import KeyValueState
from torshrun.rendezvous import rows

TICK = 0.25
"""Seconds between looks for leases that have ended: so much later they end at most."""
OTHERS = "others/row"
"""What other users of the store write."""


class Server:
    """What all virtual stores are clients of."""

    def __init__(self, network: Network, codec: Codec, oracles: Oracles) -> None:
        self.network = network
        self.codec = codec
        self.oracles = oracles
        self.state = KeyValueState(first_lease=self._fresh_lease())
        self.up = True
        self.requests: dict[str, int] = {}
        self._owners: dict[int, str] = {}
        """Who was granted each lease."""
        self._watchers: dict[str, dict[Watcher, None]] = {}  # in order: a set has none
        self._loop = asyncio.get_running_loop()
        self._ticking = self._loop.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            if self.up and self.state.next_end() <= self._loop.time():
                self._publish("", (), self.state.expire(self._loop.time()))

    # ---- requests

    def serve(self, request: Callable[[], Any]) -> Any:
        """What the request returns, or the StoreError that it ends with."""
        if not self.up:
            return StoreError("the store is down")
        try:
            return request()
        except StoreError as error:
            return error

    def transact(
        self, author: str, compares: Sequence[Compare], writes: Sequence[Write]
    ) -> Outcome:
        outcome, events = self.state.transact(compares, writes)
        self._publish(author, compares, events)
        return outcome

    def grant(self, author: str, ttl: float) -> int:
        lease = self.state.grant(ttl, self._loop.time())
        self._owners[lease] = author
        return lease

    def keep_alive(self, author: str, lease: int) -> tuple[bool, bool]:
        """Whether it was granted to this author, and not to another by a store before this one;
        and whether the leader's row stands on it.
        """
        self.state.keep_alive(lease, self._loop.time())
        return self.owns(author, lease), self.holds_leader(lease)

    def owns(self, author: str, lease: int) -> bool:
        return self._owners.get(lease) == author

    def holds_leader(self, lease: int) -> bool:
        leader = self.state.get(self.codec.key(rows.LEADER))
        return leader is not None and leader.lease == lease

    def revoke(self, author: str, lease: int) -> None:
        self._publish(author, (), self.state.revoke(lease))

    def put(self, key: str, value: bytes) -> None:
        """What somebody else writes."""
        self.transact("", (), (Put(key, self.codec.sign(key, value)),))

    # ---- watches

    def _publish(self, author: str, compares: Sequence[Compare], events: Sequence[Event]) -> None:
        if not events:
            return
        self.oracles.on_commit(Commit(author, compares, events))
        for prefix, watchers in self._watchers.items():
            matches = [event for event in events if event.key.startswith(prefix)]
            for watcher in tuple(watchers) if matches else ():
                watcher.take(matches)

    def watch(self, watcher: Watcher) -> None:
        self._watchers.setdefault(watcher.prefix, {})[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.get(watcher.prefix, {}).pop(watcher, None)

    def break_watches(self) -> None:
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.end()

    # ---- what befalls it

    def stop(self) -> None:
        """All members are down."""
        self.up = False
        self.break_watches()

    def start(self) -> None:
        """They are back; leases begin anew, as they do with a new leader of etcd."""
        self.up = True
        self.extend_leases()

    def extend_leases(self) -> None:
        for lease in [*self.state._leases]:
            self.state.keep_alive(lease, self._loop.time())

    def compact(self) -> None:
        """Forget the history."""
        self.state._history.clear()
        self.state.compacted = self.state.revision

    def wipe(self) -> None:
        """Everything is gone, and revisions are counted anew."""
        self.state, self._owners = KeyValueState(first_lease=self._fresh_lease()), {}
        self._begin_anew()

    def _fresh_lease(self) -> int:
        """No lease of one life of a store comes back in the next: etcd's clients draw their ids,
        and the store that agents serve begins to count at a random one.
        """
        return self.network.chance.getrandbits(61) + 1

    def snapshot(self) -> tuple[KeyValueState, dict[int, str]]:
        return copy.deepcopy(self.state), dict(self._owners)

    def restore(self, snapshot: tuple[KeyValueState, dict[int, str]]) -> None:
        """All is as it was then; leases last for a whole ttl from now on."""
        self.state, self._owners = snapshot
        self.state._last_lease = self._fresh_lease()
        self.extend_leases()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.break_watches()
        self.oracles.on_loss(self.state.listing("").items)

    def put_back(self, snapshot: tuple[KeyValueState, dict[int, str]], ttl: float) -> None:
        """Somebody writes what stood there then, on leases of the same ids."""
        entries = snapshot[0].listing(self.codec.base).items
        for lease in {entry.lease for entry in entries} - {0}:
            self.state._last_lease = lease - 1
            self.state.grant(ttl, self._loop.time())
        self.state.transact((), [Put(entry.key, entry.value, entry.lease) for entry in entries])
        self._begin_anew()

    def write_as_others(self, revision: int) -> None:
        """Other users write, until the store has this revision."""
        while self.state.revision < revision:
            self.put(OTHERS, b"")

    def close(self) -> None:
        self._ticking.cancel()


class Watcher:
    """One watch: events arrive in order, each after some time."""

    __slots__ = ("_end", "_lag", "_latest", "_network", "prefix", "queue")

    def __init__(self, server: Server, end: str, prefix: str) -> None:
        self._network = server.network
        self._end = end
        self.prefix = prefix
        self._latest = 0.0
        is_slow = prefix.endswith(rows.NODES) and server.network.chance.random() < 0.3
        self._lag = 0.5 if is_slow else 0.0
        """Seconds: watches need not keep up with each other, when members of etcd serve them."""
        self.queue: asyncio.Queue[Event | None] = asyncio.Queue()

    def take(self, events: Sequence[Event]) -> None:
        if not self._network.joins(self._end, STORE):
            self.end()  # TCP finds out in the end, and the watch is resumed
            return
        for event in events:
            self._deliver(event)

    def end(self) -> None:
        self._deliver(None)

    def _deliver(self, event: Event | None) -> None:
        network = self._network
        lag = self._lag + network.lags.get((self._end, self.prefix), 0.0)
        self._latest = max(self._latest, network.loop.time() + lag + network.delay())
        network.loop.call_at(self._latest, self.queue.put_nowait, event, context=network.outside)
