"""A node and the leader that it finds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from torsh_runtime.store.memory import MemoryStore
from torshrun import exit_codes
from torshrun.rendezvous import rows
from torshrun.rendezvous.base import JobOver, RendezvousEvent, RoundFormed, StandingBy
from torshrun.rendezvous.beats import Answer, Beat, Beats, Judge
from torshrun.rendezvous.handler import NodeRendezvous
from torshrun.rendezvous.rows import LeaderRow, VerdictRow
from torshrun.rendezvous.settings import NodeFacts, Settings

SETTINGS = Settings(run_id="r", min_nodes=1, max_nodes=1, ttl=4.0)
FACTS = NodeFacts(node="a", host="a", address="a", endpoint="e", nproc=1, secret_id="s1")
LEADER = LeaderRow(
    node="b",
    endpoint="e",
    token="t",
    ttl=SETTINGS.ttl,
    outage_timeout=SETTINGS.outage_timeout,
    secret_id="s1",
)


class NoBeats(Beats):
    """No other node is there."""

    async def beat(self, endpoint: str, fence: int, beat: Beat, timeout: float) -> Answer:
        return "gone"

    def serve(self, judge: Judge | None) -> None:
        pass

    async def close(self) -> None:
        pass


async def first_event(leader: bytes, kinds: tuple[type[Any], ...]) -> RendezvousEvent:
    """The first one of these kinds if this stands for the leader."""
    store = MemoryStore()
    await store.put(rows.base("r") + rows.LEADER, leader)
    node = NodeRendezvous(store, SETTINGS, FACTS, NoBeats())
    found: asyncio.Future[RendezvousEvent] = asyncio.get_running_loop().create_future()

    def take(event: RendezvousEvent) -> None:
        if isinstance(event, kinds) and not found.done():
            found.set_result(event)

    node.start(take)
    try:
        async with asyncio.timeout(20):
            return await found
    finally:
        await node.close()
        await store.close()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ttl": 20.0}, "ttl is 4 here and 20 on the other nodes"),
        ({"outage_timeout": 1.0}, "outage_timeout is 180 here and 1 on the other nodes"),
        ({"secret_id": "s2"}, "this node's secret differs from that of the job"),
    ],
)
def test_a_node_that_does_not_fit_the_leader_ends(changes: dict[str, Any], why: str) -> None:
    leader = rows.encode(replace(LEADER, **changes))
    over = asyncio.run(first_event(leader, (JobOver, RoundFormed)))
    assert isinstance(over, JobOver)
    assert over.verdict.code == exit_codes.RENDEZVOUS
    assert over.verdict.reason.startswith(why)


def test_what_is_no_leader_hinders_no_election() -> None:
    formed = asyncio.run(first_event(b"garbage", (JobOver, RoundFormed)))
    assert isinstance(formed, RoundFormed)


def test_a_verdict_from_before_is_another_jobs_however_often_it_is_listed() -> None:
    verdict = rows.encode(VerdictRow(outcome="failed", code=7, reason="the last one"))
    again = [(rows.VERDICT.removeprefix(rows.CONTROL), verdict, 5)]
    told: list[RendezvousEvent] = []

    async def scene() -> None:
        store = MemoryStore()
        node = NodeRendezvous(store, SETTINGS, FACTS, NoBeats())
        node._post = told.append
        node._take_control(again)
        node._take_control(again)
        assert [type(event) for event in told] == [StandingBy]
        node._take_control([(again[0][0], verdict, 6)])  # this one is its own job's
        assert isinstance(told[-1], JobOver)
        await store.close()

    asyncio.run(scene())


def test_a_verdict_from_before_makes_room_for_the_next_job() -> None:
    verdict = rows.encode(VerdictRow(outcome="succeeded", code=0, reason="done"))
    told: list[RendezvousEvent] = []

    async def scene() -> None:
        store = MemoryStore()
        node = NodeRendezvous(store, SETTINGS, FACTS, NoBeats())
        node._post = told.append
        name = rows.VERDICT.removeprefix(rows.CONTROL)
        node._take_control([(name, verdict, 5)])
        node._take_change(name, None, 6)
        why = [event.reason for event in told if isinstance(event, StandingBy)]
        assert "the run id will soon be free again" in why[0]
        assert why[1].startswith("waiting for the job's nodes")
        await store.close()

    asyncio.run(scene())
