"""Summaries: what each agent tells the one that leads, past the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from support.ports import GivenPorts

from torsh_runtime.store.endpoint import TcpEndpoint, parse_endpoint
from torsh_runtime.store.memory import MemoryStore
from torsh_runtime.store.server import StoreServer
from torshrun.config.job import Address, LaunchConfig, RendezvousConfig
from torshrun.rendezvous import rows
from torshrun.rendezvous.alone import Alone
from torshrun.rendezvous.base import SUMMARY_BYTES, RendezvousEvent, Summaries
from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.heartbeats import Heartbeat
from torshrun.rendezvous.rendezvous_store import store_key
from torshrun.rendezvous.rows import NodeRow
from torshrun.rendezvous.settings import Settings
from torshrun.rendezvous.together import Together

TTL = 1.0
LONGEST = bytes(range(256)) * (SUMMARY_BYTES // 256)
BEAT = Heartbeat("a", 3, "token", 2, 1, LONGEST)


def test_a_beat_carries_any_bytes() -> None:
    assert rows.decode(Heartbeat, rows.encode(BEAT)) == BEAT


@pytest.mark.parametrize("text", ["%", "AAA", "A" * 4 * SUMMARY_BYTES, 3, None])
def test_what_is_no_summary_makes_no_beat(text: object) -> None:
    encoded = rows.encode(Heartbeat("a", 3, "token", 2, 1, b"here"))
    shown = b"null" if text is None else repr(text).replace("'", '"').encode()
    assert rows.decode(Heartbeat, encoded.replace(b'"aGVyZQ=="', shown)) is None


def test_a_summary_goes_with_its_node() -> None:
    view = ClusterState(Settings(run_id="r", min_nodes=1, max_nodes=2), "a", 0.0)
    view.note_summary("b", b"too early")
    view.put(NodeRow(node="b", sequence=1, state="waiting"), 1)
    assert view.nodes.summaries == {}
    view.note_summary("b", b"first")
    view.note_summary("b", b"second")
    assert view.nodes.summaries == {"b": b"second"}
    view.drop("b")
    assert view.nodes.summaries == {}


def test_a_node_that_is_alone_tells_itself() -> None:
    posted: list[RendezvousEvent] = []
    alone = Alone(LaunchConfig(target="t", nproc_per_node=1, master_port=1), GivenPorts())
    alone.start(posted.append)
    alone.tell_leader(b"well")
    (found,) = [event for event in posted if isinstance(event, Summaries)]
    assert list(found.by_node.values()) == [b"well"]
    with pytest.raises(ValueError, match="at most 1024"):
        alone.tell_leader(LONGEST + b"!")


class Node:
    """One of two, and what the rendezvous has told its agent."""

    def __init__(self, port: int) -> None:
        config = RendezvousConfig(
            backend="tcp", endpoints=(Address("127.0.0.1", port),), ttl=TTL, secret="s"
        )
        settings = Settings(run_id="job", min_nodes=1, max_nodes=2, ttl=TTL, join_timeout=20)
        self.together = Together(config, settings, 1, "")
        self.summaries: Mapping[str, bytes] = {}
        self.news = asyncio.Event()

    def hear(self, event: RendezvousEvent) -> None:
        if isinstance(event, Summaries):
            self.summaries = event.by_node
            self.news.set()

    async def until_told(self, *wanted: bytes) -> None:
        while sorted(self.summaries.values()) != sorted(wanted):
            self.news.clear()
            await self.news.wait()


def test_the_leader_hears_all_and_the_next_one_too() -> None:
    async def scene() -> None:
        store = MemoryStore()
        server = StoreServer(store, store_key("s"))
        endpoint = parse_endpoint(await server.start("tcp:127.0.0.1:0"))
        assert isinstance(endpoint, TcpEndpoint)
        first, second = Node(endpoint.port), Node(endpoint.port)
        first.together.tell_leader(b"told before it begins")
        first.together.start(first.hear)
        await first.until_told(b"told before it begins")
        second.together.start(second.hear)
        second.together.tell_leader(LONGEST)
        await first.until_told(b"told before it begins", LONGEST)
        first.together.tell_leader(b"")
        second.together.tell_leader(b"news")
        await first.until_told(b"news")
        assert second.summaries == {}
        await first.together.close()
        await second.until_told(b"news")
        await second.together.close()
        await server.close()
        await store.close()

    async def guarded() -> None:
        async with asyncio.timeout(40):
            await scene()

    asyncio.run(guarded())
