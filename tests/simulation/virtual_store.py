"""A virtual etcd: leases that outlive their ttl, lost answers, compaction, outages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from simulation.network import STORE, Network

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import (
    Compare,
    Delete,
    Entry,
    Event,
    Listing,
    Outcome,
    Put,
    Store,
    Write,
)
from torsh_runtime.store.signed import sign, verified
from torsh_runtime.store.state import KeyValueState
from torshrun.rendezvous import rows
from torshrun.rendezvous.epoch import Epoch, read_epoch

RUN_ID = "virtual"
SECRET = b"that of the virtual job"

TICK = 0.25
"""Seconds between looks for leases that have ended: so much later they end at most."""


class Server:
    """What all virtual stores are clients of."""

    def __init__(self, network: Network, on_event: Callable[[Event], None]) -> None:
        self.network = network
        self.state = KeyValueState(first_lease=1)
        self.up = True
        self.requests: dict[str, int] = {}
        self._on_event = on_event
        self._watchers: dict[str, dict[Watcher, None]] = {}  # in order: a set has none
        self._loop = asyncio.get_running_loop()
        self._ticking = self._loop.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            if self.up:
                self.publish(self.state.expire(self._loop.time()))

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

    def break_watches(self) -> None:
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.end()

    def publish(self, events: Sequence[Event]) -> None:
        for event in events:
            self._on_event(event._replace(value=self._plain(event.key, event.value)))
        for prefix, watchers in self._watchers.items():
            matches = [event for event in events if event.key.startswith(prefix)]
            for watcher in watchers if matches else ():
                watcher.take(matches)

    def put(self, key: str, value: bytes) -> None:
        """What somebody else writes."""
        epoch = self._epoch()
        signed = sign(epoch.records, key, value) if epoch else value
        _, events = self.state.transact((), (Put(key, signed),))
        self.publish(events)

    def _epoch(self) -> Epoch | None:
        entry = self.state.get(rows.base(RUN_ID) + rows.EPOCH)
        return read_epoch(RUN_ID, SECRET, entry) if entry else None

    def _plain(self, key: str, signed: bytes) -> bytes:
        """As who knows the job's secret reads it."""
        epoch = self._epoch()
        return verified(epoch.records, key, signed) if epoch else b""

    def watch(self, watcher: Watcher) -> None:
        self._watchers.setdefault(watcher.prefix, {})[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.get(watcher.prefix, {}).pop(watcher, None)

    def close(self) -> None:
        self._ticking.cancel()


class Watcher:
    """One watch: events arrive in order, each after some time."""

    def __init__(self, server: Server, end: str, prefix: str) -> None:
        self._network = server.network
        self._end = end
        self.prefix = prefix
        self._loop = asyncio.get_running_loop()
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
        lag = self._lag + self._network.lags.get((self._end, self.prefix), 0.0)
        self._latest = max(self._latest, self._loop.time() + lag + self._network.delay())
        self._loop.call_at(self._latest, self.queue.put_nowait, event)


class VirtualStore(Store):
    """One agent's client."""

    def __init__(self, server: Server, end: str) -> None:
        self._server = server
        self._end = end

    async def _call(self, request: Callable[[], Any]) -> Any:
        server, network = self._server, self._server.network
        server.requests[self._end] = server.requests.get(self._end, 0) + 1
        await network.carry(self._end, STORE)
        if not server.up:
            await network.carry(STORE, self._end)
            raise StoreError("the store is down")
        answer = request()
        if network.loss and network.chance.random() < network.loss:
            await asyncio.sleep(network.delay() * 10)
            await network.moves(self._end)
            raise StoreError("the answer was lost")
        await network.carry(STORE, self._end)
        return answer

    async def get(self, key: str) -> Entry | None:
        entry: Entry | None = await self._call(lambda: self._server.state.get(key))
        return entry

    async def list(self, prefix: str) -> Listing:
        listing: Listing = await self._call(lambda: self._server.state.listing(prefix))
        return listing

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return (await self.transact((), (Put(key, value, lease),))).revision

    async def delete(self, key: str) -> bool:
        return (await self.transact((), (Delete(key),))).succeeded

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        def request() -> Outcome:
            outcome, events = self._server.state.transact(compares, writes)
            self._server.publish(events)
            return outcome

        outcome: Outcome = await self._call(request)
        return outcome

    async def add(self, key: str, amount: int) -> int:
        raise StoreError("the rendezvous counts nothing")

    async def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        raise StoreError("the rendezvous waits for no keys")

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        server, network = self._server, self._server.network
        watcher = Watcher(server, self._end, prefix)
        try:
            async with asyncio.timeout(5):
                past = await self._call(lambda: self._begin(watcher, prefix, after))
        except TimeoutError:
            server.unwatch(watcher)
            raise StoreError("the watch did not begin") from None
        try:
            for event in past:
                yield event
            while (event := await watcher.queue.get()) is not None:
                await network.moves(self._end)
                yield event
        finally:
            server.unwatch(watcher)
        raise StoreError("the watch broke")

    def _begin(self, watcher: Watcher, prefix: str, after: int) -> tuple[Event, ...]:
        events = self._server.state.events_after(prefix, after)
        self._server.watch(watcher)
        return events

    async def grant(self, ttl: float) -> int:
        now = asyncio.get_running_loop().time
        lease: int = await self._call(lambda: self._server.state.grant(ttl, now()))
        return lease

    async def keep_alive(self, lease: int) -> None:
        now = asyncio.get_running_loop().time
        await self._call(lambda: self._server.state.keep_alive(lease, now()))

    async def revoke(self, lease: int) -> None:
        await self._call(lambda: self._server.publish(self._server.state.revoke(lease)))

    async def close(self) -> None:
        pass
