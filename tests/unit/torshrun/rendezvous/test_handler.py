"""A node and the leader that it finds."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from torsh_runtime.store.memory import MemoryStore
from torshrun import exit_codes
from torshrun.rendezvous import rows
from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.base import JobOver, RendezvousEvent, RoundFormed
from torshrun.rendezvous.handler import NodeRendezvous
from torshrun.rendezvous.heartbeats import Answer, Heartbeat, Heartbeats, Judge, Reply
from torshrun.rendezvous.rows import LeaderRow, NodeRow
from torshrun.rendezvous.settings import NodeFacts, Settings

SETTINGS = Settings(run_id="r", min_nodes=1, max_nodes=1, ttl=4.0)
FACTS = NodeFacts(node="a", host="a", address="a", endpoint="tcp:a:1", nproc=1)
LEADER = LeaderRow(
    node="b",
    endpoint="tcp:a:1",
    token="t",
    ttl=SETTINGS.ttl,
    outage_timeout=SETTINGS.outage_timeout,
)


class SameAnswer(Heartbeats):
    """What every beat gets; unless it is set, no other node is there."""

    answer: Answer = "silent"

    async def beat(
        self, node: str, endpoint: str, fence: int, beat: Heartbeat, timeout: float
    ) -> Reply:
        return Reply(self.answer)

    def serve(self, judge: Judge | None) -> None:
        pass

    async def close(self) -> None:
        pass


def asking(store: MemoryStore) -> Asking:
    return Asking(store, SETTINGS, time.monotonic, random.Random(1))


async def first_event(leader: bytes, kinds: tuple[type[Any], ...]) -> RendezvousEvent:
    """The first one of these kinds if this stands for the leader."""
    store = MemoryStore()
    await store.put(rows.base("r") + rows.EPOCH, b"it stands")
    await store.put(rows.base("r") + rows.LEADER, leader)
    node = NodeRendezvous(asking(store), FACTS, SameAnswer())
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
        ({"max_restarts": 3}, "--max-restarts is 0 here and 3 on the other nodes"),
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


def test_what_a_leader_answered_is_forgotten_with_the_lease() -> None:
    """The node's row went with it, and a leader that finds no row may go on without the node."""

    async def until(holds: Callable[[], object]) -> None:
        while not holds():  # noqa: ASYNC110 - the node tells nobody of it
            await asyncio.sleep(0.01)

    async def scene() -> None:
        store, beats = MemoryStore(), SameAnswer()
        beats.answer = "granted"
        await store.put(rows.base("r") + rows.EPOCH, b"it stands")
        await store.put(rows.base("r") + rows.LEADER, rows.encode(LEADER))
        node = NodeRendezvous(asking(store), FACTS, beats)
        node.start(lambda event: None)
        async with asyncio.timeout(20):
            await until(lambda: node._pulse.answers)
            beats.answer = "silent"
            lease = node._registration.lease
            await store.revoke(lease)
            await until(lambda: node._registration.lease not in (0, lease))
        assert not node._pulse.answers
        await node.close()
        await store.close()

    asyncio.run(scene())


def test_who_was_answered_by_nobody_still_tells_of_the_round_before() -> None:
    """Others may go on in that, and count on being waited for in the next epoch."""
    before = NodeRow(
        node="a", sequence=7, state="waiting", round=3, token="t", round_size=2, node_rank=1
    )

    async def scene() -> NodeRow | None:
        node = NodeRendezvous(
            asking(MemoryStore()), FACTS, SameAnswer(), before=before, is_proven=False
        )
        return node.past

    told = asyncio.run(scene())
    assert told is not None
    assert (told.round, told.round_size, told.node_rank, told.sequence) == (3, 2, 1, 8)
