"""One agent's client of the virtual store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from simulation.network import STORE, Mishap
from simulation.server import Server, Watcher

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
from torshrun.rendezvous import rows

_WATCH_TIMEOUT = 5.0


class VirtualStore(Store):
    """Requests are messages: what was sent has its effect though its sender has given up."""

    def __init__(self, server: Server, end: str) -> None:
        self._server = server
        self._end = end
        self._loop = server.network.loop

    async def _call(self, request: Callable[[], Any], kind: Callable[[], str]) -> Any:
        server, network = self._server, self._server.network
        server.requests[self._end] = server.requests.get(self._end, 0) + 1
        mishap = Mishap()
        if network.ambushes or network.loss or network.late:
            mishap = network.befall(self._end, kind)
            await asyncio.sleep(0)  # an ambush may have stopped this end just before it sends
        answer: asyncio.Future[Any] = self._loop.create_future()

        def arrive() -> None:
            result = server.serve(request)
            if mishap.is_lost:
                lost = StoreError("the answer was lost")
                self._loop.call_later(network.delay() * 10, _settle, answer, lost)
            else:
                network.send(STORE, self._end, lambda: _settle(answer, result), mishap.answer_late)

        network.send(self._end, STORE, arrive, mishap.late)
        return await answer

    async def get(self, key: str) -> Entry | None:
        sent, server = self._loop.time(), self._server
        entry: Entry | None = await self._call(lambda: server.state.get(key), lambda: f"get {key}")
        is_leader = key == server.codec.key(rows.LEADER)
        if is_leader and entry and server.owns(self._end, entry.lease):
            server.oracles.on_confirmed(self._end, sent)
        return entry

    async def list(self, prefix: str) -> Listing:
        listing: Listing = await self._call(
            lambda: self._server.state.listing(prefix), lambda: f"list {prefix}"
        )
        return listing

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return (await self.transact((), (Put(key, value, lease),))).revision

    async def delete(self, key: str) -> bool:
        return (await self.transact((), (Delete(key),))).succeeded

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        server = self._server
        outcome: Outcome = await self._call(
            lambda: server.transact(self._end, compares, writes), lambda: server.codec.kind(writes)
        )
        return outcome

    async def add(self, key: str, amount: int) -> int:
        raise StoreError("the rendezvous counts nothing")

    async def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        raise StoreError("the rendezvous waits for no keys")

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        server = self._server
        watcher = Watcher(server, self._end, prefix)
        try:
            async with asyncio.timeout(_WATCH_TIMEOUT):
                past = await self._call(
                    lambda: self._begin(watcher, prefix, after), lambda: f"watch {prefix}"
                )
        except TimeoutError:
            server.unwatch(watcher)
            raise StoreError("the watch did not begin") from None
        try:
            for event in past:
                yield event
            while (event := await watcher.queue.get()) is not None:
                yield event
        finally:
            server.unwatch(watcher)
        raise StoreError("the watch broke")

    def _begin(self, watcher: Watcher, prefix: str, after: int) -> tuple[Event, ...]:
        events = self._server.state.events_after(prefix, after)
        self._server.watch(watcher)
        return events

    async def grant(self, ttl: float) -> int:
        sent = self._loop.time()
        lease: int = await self._call(lambda: self._server.grant(self._end, ttl), lambda: "grant")
        self._server.oracles.on_contact(self._end, sent, leads=False)
        return lease

    async def keep_alive(self, lease: int) -> None:
        sent = self._loop.time()
        is_own, leads = await self._call(
            lambda: self._server.keep_alive(self._end, lease), lambda: "keep_alive"
        )
        if is_own:  # who was elected since it was renewed leads on it as well
            leads = leads or self._server.holds_leader(lease)
            self._server.oracles.on_contact(self._end, sent, leads)

    async def revoke(self, lease: int) -> None:
        await self._call(lambda: self._server.revoke(self._end, lease), lambda: "revoke")

    async def close(self) -> None:
        pass


def _settle(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():  # nobody waits for it any more
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
