"""What the leader does when answers of the store are lost, and its watches lag."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest

from torsh_runtime.errors import StoreTimeout
from torsh_runtime.store.base import Compare, Event, Listing, Outcome, Put, Write
from torsh_runtime.store.memory import MemoryStore
from torshrun.rendezvous import rows
from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.heartbeats import Heartbeat
from torshrun.rendezvous.lead import Lead
from torshrun.rendezvous.rows import Header, LeaderRow, NodeRow, SizeWanted
from torshrun.rendezvous.settings import Settings

SETTINGS = Settings(run_id="r", min_nodes=1, max_nodes=2, ttl=4, last_call_timeout=0.1)


def key(name: str) -> str:
    return rows.base("r") + name


class Lagging(MemoryStore):
    """Its watch of the nodes may stand still, and one answer may be lost."""

    loses = ""
    """Which answer is lost next: "close" or "list"."""

    def __init__(self) -> None:
        super().__init__()
        self.flows = asyncio.Event()
        self.flows.set()

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        outcome = await super().transact(compares, writes)
        closes = any(isinstance(write, Put) and b'"closing"' in write.value for write in writes)
        self._lose("close" if closes else "")
        return outcome

    async def list(self, prefix: str) -> Listing:
        self._lose("list" if prefix == key(rows.NODES) else "")
        return await super().list(prefix)

    def _lose(self, what: str) -> None:
        if what and what == self.loses:
            self.loses = ""
            raise StoreTimeout("the answer was lost")

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        async with aclosing(super().watch(prefix, after)) as events:
            async for event in events:
                if prefix == key(rows.NODES):
                    await self.flows.wait()
                yield event


async def follow_header(store: MemoryStore, lead: Lead) -> None:
    """What the node's own watch does."""
    async with aclosing(store.watch(key(rows.ROUND), 0)) as events:
        async for event in events:
            header = rows.decode(Header, event.value)
            lead.take_header(header, event.revision, event.revision)


async def until_phase(store: MemoryStore, phase: str) -> Header:
    async with asyncio.timeout(20), aclosing(store.watch(key(rows.ROUND), 0)) as events:
        async for event in events:
            header = rows.decode(Header, event.value)
            if header and header.phase == phase:
                return header
    raise AssertionError("the watch ended")


async def scale_down_unseen(loses: str) -> Header:
    """Two nodes enter a round, which the leader does not hear before it closes it."""
    store = Lagging()
    leader = rows.encode(LeaderRow(node="a", endpoint="tcp:a:1", token="t"))
    fence = await store.put(key(rows.LEADER), leader)
    for name in "ab":
        row = NodeRow(node=name, sequence=1, state="waiting")
        await store.put(key(rows.NODES + name), rows.encode(row))
    view = ClusterState(SETTINGS, "a", time.monotonic())
    view.term = replace(view.term, fence=fence)
    asking = Asking(store, SETTINGS, time.monotonic, random.Random(1))
    lead = Lead(asking, view, lambda: None)
    tasks = [asyncio.create_task(lead.run()), asyncio.create_task(follow_header(store, lead))]
    opened = await until_phase(store, "open")
    store.flows.clear()
    for rank, name in enumerate("ab"):
        row = NodeRow(
            node=name, sequence=2, state="inside", round=0, token=opened.token, node_rank=rank
        )
        await store.put(key(rows.NODES + name), rows.encode(row))
    store.loses = loses
    wanted = rows.encode(SizeWanted(min_nodes=1, max_nodes=1))
    await store.put(key(rows.WANT_SIZE), wanted)
    await until_phase(store, "closing")
    await asyncio.sleep(0.5)  # enough for another round, if it were formed
    last = await store.get(key(rows.ROUND))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await store.close()
    header = rows.decode(Header, last.value) if last else None
    assert header is not None
    return header


@pytest.mark.slow
@pytest.mark.parametrize("loses", ["", "close", "list"])
def test_no_round_is_formed_while_nodes_are_inside_the_last_one(loses: str) -> None:
    header = asyncio.run(scale_down_unseen(loses))
    assert (header.number, header.phase) == (0, "closing")


def test_no_job_ends_for_want_of_nodes_that_came_unseen() -> None:
    async def scene() -> str:
        store, rules = Lagging(), replace(SETTINGS, min_nodes=2, join_timeout=0.5)
        leader = rows.encode(LeaderRow(node="a", endpoint="tcp:a:1", token="t"))
        view = ClusterState(rules, "a", time.monotonic())
        view.term = replace(view.term, fence=await store.put(key(rows.LEADER), leader))
        view.answer_beat(Heartbeat("b", -1, "", 1, 0), time.monotonic(), math.inf)
        lead = Lead(Asking(store, rules, time.monotonic, random.Random(1)), view, lambda: None)
        came = {name: rows.encode(NodeRow(node=name, sequence=1, state="waiting")) for name in "ab"}
        await store.put(key(rows.NODES + "a"), came["a"])
        store.flows.clear()
        task = asyncio.create_task(lead.run())
        await lead._nodes.is_loaded.wait()
        await store.put(key(rows.NODES + "b"), came["b"])
        told = await first_of(store, rows.ROUND, rows.VERDICT)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()
        return told

    assert asyncio.run(scene()) == rows.ROUND


async def first_of(store: MemoryStore, *names: str) -> str:
    """Which of these is written first."""
    async with asyncio.timeout(20), aclosing(store.watch(key(rows.CONTROL), 0)) as events:
        async for event in events:
            name = event.key.removeprefix(rows.base("r"))
            if name in names:
                return name
    raise AssertionError("the watch ended")


@pytest.mark.parametrize("change", [b'"nproc":0', b'"nproc":1048577', b'"nproc":1,"round":-2'])
def test_a_row_of_impossible_facts_counts_as_none(change: bytes) -> None:
    row = NodeRow(node="b", sequence=1, state="waiting", nproc=7)
    odd = rows.encode(row).replace(b'"round":-1', b'"cause":""').replace(b'"nproc":7', change)
    sound = rows.encode(NodeRow(node="a", sequence=1, state="waiting"))
    view = ClusterState(SETTINGS, "a", 0.0)
    asking = Asking(MemoryStore(), SETTINGS, time.monotonic, random.Random(1))
    lead = Lead(asking, view, lambda: None)
    lead._take_node("a", sound, 1)
    lead._take_node("b", odd, 2)
    assert view.rows.keys() == {"a"}


def test_what_a_leader_wrote_is_not_undone_by_a_watch_that_lags() -> None:
    view = ClusterState(SETTINGS, "a", time.monotonic())
    asking = Asking(MemoryStore(), SETTINGS, time.monotonic, random.Random(1))
    lead = Lead(asking, view, lambda: None)
    opened = Header(number=1, token="t", phase="open", fence=1, leader="a", size=1, world_size=1)
    lead.take_header(replace(opened, phase="closing"), 9, 9)
    for header, revision, as_of in ((opened, 8, 8), (None, 0, 7)):
        lead.take_header(header, revision, as_of)
        assert view.header is not None
        assert view.header.phase == "closing"
    lead.take_header(None, 0, 10)
    assert view.header is None
