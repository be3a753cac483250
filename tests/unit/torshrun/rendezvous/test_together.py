"""A node's part in a job, with a real store that somebody else serves."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from torsh_runtime.store.endpoint import TcpEndpoint, parse_endpoint
from torsh_runtime.store.memory import MemoryStore
from torsh_runtime.store.server import StoreServer
from torshrun.config.job import Access, Address, RendezvousConfig
from torshrun.rendezvous.base import (
    JobOver,
    RendezvousEvent,
    Report,
    RoundFormed,
    StandingBy,
    Verdict,
)
from torshrun.rendezvous.rendezvous_store import RendezvousStore, store_key
from torshrun.rendezvous.settings import Settings
from torshrun.rendezvous.together import Together

SECRET = "the job's secret"
TTL = 1.0


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def guarded() -> None:
        async with asyncio.timeout(20):
            await scene

    asyncio.run(guarded())


@dataclass
class Site:
    """A store, served here, and a node that meets others there."""

    store: MemoryStore
    server: StoreServer
    together: Together
    heard: list[RendezvousEvent]
    news: asyncio.Event

    async def hear(self, kind: type[Any]) -> Any:
        while not (found := [event for event in self.heard if isinstance(event, kind)]):
            self.news.clear()
            await self.news.wait()
        return found[0]


def _together(port: int = 1) -> Together:
    config = RendezvousConfig(
        backend="tcp", endpoints=(Address("127.0.0.1", port),), ttl=TTL, secret=SECRET
    )
    settings = Settings(run_id="job", min_nodes=1, max_nodes=1, ttl=TTL)
    return Together(config, settings, 1, "trainer")


@asynccontextmanager
async def opened() -> AsyncGenerator[Site, None]:
    store, heard, news = MemoryStore(), list[RendezvousEvent](), asyncio.Event()

    def hear(event: RendezvousEvent) -> None:
        heard.append(event)
        news.set()

    server = StoreServer(store, store_key(SECRET))
    endpoint = parse_endpoint(await server.start("tcp:127.0.0.1:0"))
    assert isinstance(endpoint, TcpEndpoint)
    together = _together(endpoint.port)
    together.start(hear)
    yield Site(store, server, together, heard, news)
    await together.close()
    await server.close()
    await store.close()


def test_a_verdict_stands_though_the_stores_host_goes() -> None:
    async def scene() -> None:
        async with opened() as site:
            formed: RoundFormed = await site.hear(RoundFormed)
            site.together.report(Report(round=formed.place.round, outcome="succeeded"))
            over: JobOver = await site.hear(JobOver)
            await site.server.close()
            await asyncio.sleep(2.5 * TTL)
            assert [event for event in site.heard if isinstance(event, JobOver)] == [over]
            assert over.verdict.outcome == "succeeded"

    play(scene())


def test_the_jobs_secret_stands_nowhere_in_the_store() -> None:
    async def scene() -> None:
        async with opened() as site:
            await site.hear(RoundFormed)
            for item in (await site.store.list("")).items:
                assert SECRET.encode() not in item.value
                assert SECRET.encode().hex().encode() not in item.value

    play(scene())


def test_that_a_password_goes_in_clear_is_said_before_it_goes() -> None:
    async def scene() -> None:
        heard: list[RendezvousEvent] = []
        before: list[RendezvousEvent] = []
        asked = asyncio.Event()

        async def be_asked(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            before.extend(heard)
            asked.set()
            writer.close()

        etcd = await asyncio.start_server(be_asked, "127.0.0.1", 0)
        endpoints = (Address("127.0.0.1", etcd.sockets[0].getsockname()[1]),)
        access = Access(user="somebody", password="hush")
        config = RendezvousConfig(backend="etcd", endpoints=endpoints, ttl=TTL, access=access)
        settings = Settings(run_id="job", min_nodes=1, max_nodes=1, ttl=TTL)
        together = Together(config, settings, 1, "trainer")
        together.start(heard.append)
        await asked.wait()
        said = [event.reason for event in before if isinstance(event, StandingBy)]
        assert any("password goes over the network as it is" in text for text in said)
        await together.close()
        etcd.close()
        await etcd.wait_closed()

    play(scene())


def test_asking_others_to_stop_may_come_too_late() -> None:
    async def scene() -> None:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        store = MemoryStore()
        await store.close()
        together = _together()
        together._meeting = RendezvousStore("the store", store, StoreServer(store, b"key"))
        together._store = store
        together._pass_on(JobOver(Verdict(outcome="preempted", code=143, reason="")))
        assert together._stopping is not None
        await asyncio.wait([together._stopping])
        together._stopping = None
        gc.collect()
        assert faults == []

    play(scene())


def test_a_node_that_closes_while_it_leaves_a_lost_epoch_serves_others_no_more() -> None:
    async def scene() -> None:
        async with opened() as site:
            await site.hear(RoundFormed)
            part, hub = site.together._part, site.together._hub
            assert hub is not None
            assert part._node is not None
            part._node.lost.set_result(False)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert part._node is None  # it is about to be closed
            await site.together.close()
            endpoint = parse_endpoint(hub.endpoint)
            assert isinstance(endpoint, TcpEndpoint)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(endpoint.host, endpoint.port)

    play(scene())
