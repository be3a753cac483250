"""What a node may take for a grant: it counts from when it asked, and not once it stood still."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from torsh_runtime.store.memory import MemoryStore
from torshrun.rendezvous import rows
from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.base import Granted, RendezvousEvent, Report, RoundClosing
from torshrun.rendezvous.heartbeat_sender import HeartbeatSender
from torshrun.rendezvous.heartbeats import Answer, Heartbeat, Heartbeats, Judge, Reply
from torshrun.rendezvous.member import Member
from torshrun.rendezvous.registration import Registration
from torshrun.rendezvous.rows import Header, LeaderRow, PlaceRow
from torshrun.rendezvous.settings import GRANT, NodeFacts, Settings

RULES = Settings(run_id="r", min_nodes=1, max_nodes=2, ttl=10.0)
FACTS = NodeFacts(node="a", host="a", address="a", endpoint="e", nproc=1)
HEADER = Header(number=0, phase="open", token="t", fence=5, leader="b", size=2, world_size=2)
LEADER = LeaderRow(node="b", endpoint="there", token="t", ttl=RULES.ttl)


class Clock:
    """Goes when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class SlowStore(MemoryStore):
    """Each lease's request takes a second."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._at = clock

    async def grant(self, ttl: float) -> int:
        lease = await super().grant(ttl)
        self._at.now += 1
        return lease

    async def keep_alive(self, lease: int) -> None:
        await super().keep_alive(lease)
        self._at.now += 1


class SlowBeats(Heartbeats):
    """Each beat takes a second, and is granted; meanwhile something may happen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.meanwhile = lambda: None

    async def beat(
        self, node: str, endpoint: str, fence: int, beat: Heartbeat, timeout: float
    ) -> Reply:
        self._clock.now += 1
        self.meanwhile()
        return Reply("granted")

    def serve(self, judge: Judge | None) -> None:
        pass

    async def close(self) -> None:
        pass


class Node:
    """One that is inside a round, as far as `enter` has been called."""

    def __init__(self, rules: Settings = RULES, beats: Any = SlowBeats) -> None:
        self.clock = Clock()
        self.store = SlowStore(self.clock)
        self.beats = beats(self.clock)
        self.events: list[RendezvousEvent] = []
        asking = Asking(self.store, rules, self.clock, random.Random(1))
        self.member = Member(rules, FACTS)
        self.registration = Registration(asking, self.member, lambda: None)
        self.leads_until = -math.inf
        self.pulse = HeartbeatSender(
            self.beats,
            asking,
            self.member,
            self.registration,
            leads_until=lambda: self.leads_until,
            tell=self.events.extend,
            on_answer=lambda: None,
            post=self.events.append,
        )

    async def enter(self) -> None:
        revision = await self.store.put(rows.base("r") + rows.ROUND, rows.encode(HEADER))
        self.member.take_header(HEADER, revision)
        place = PlaceRow(round=0, token="t", node_rank=1, first_rank=1)
        self.member.take_place("t", place)
        await self.registration.open_lease()
        assert await self.registration.write()
        self.pulse.extend()
        self.events.extend(self.member.entered())

    def grants(self) -> list[float]:
        return [event.until for event in self.events if isinstance(event, Granted)]


class LateBeats(SlowBeats):
    """The leader does not know at first that it is one."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.answered = asyncio.Event()
        self._answers: list[Answer] = ["refused", "refused", "granted"]

    async def beat(
        self, node: str, endpoint: str, fence: int, beat: Heartbeat, timeout: float
    ) -> Reply:
        answer = self._answers.pop(0)
        if not self._answers:
            self.answered.set()
        return Reply(answer)


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_lease_counts_from_when_it_was_asked_for(node: Node) -> None:
    async def scene() -> None:
        sent = node.clock.now
        await node.enter()
        assert node.registration.until == sent + GRANT * RULES.ttl
        sent = node.clock.now
        assert await node.registration.renew()
        assert node.registration.until == sent + GRANT * RULES.ttl
        await node.store.close()

    asyncio.run(scene())


def test_a_beat_counts_from_when_it_was_sent(node: Node) -> None:
    async def scene() -> None:
        await node.enter()
        sent = node.clock.now
        await node.pulse._beat(LEADER, 0)
        assert node.pulse._heard_until == sent + GRANT * RULES.ttl
        await node.store.close()

    asyncio.run(scene())


def test_a_node_that_stood_still_for_longer_than_its_grant_stops(node: Node) -> None:
    async def scene() -> None:
        await node.enter()
        (until,) = node.grants()
        node.clock.now = until
        assert await node.registration.renew()  # the lease lives for a while yet
        node.pulse.extend()
        assert node.grants() == [until]
        assert isinstance(node.events[-1], RoundClosing)
        node.pulse.disarm()
        await node.store.close()

    asyncio.run(scene())


def test_a_leader_that_has_heard_of_all_nodes_since_it_last_looked_goes_on(node: Node) -> None:
    async def scene() -> None:
        await node.enter()
        (until,) = node.grants()
        node.leads_until = until + 1
        node.pulse._warn()
        assert node.grants() == [until, until + 1]
        node.pulse._warn()  # nothing new
        assert isinstance(node.events[-1], RoundClosing)
        node.pulse.disarm()
        await node.store.close()

    asyncio.run(scene())


def test_answers_tell_nothing_of_a_leader_who_may_have_forgotten_this_node(node: Node) -> None:
    async def scene() -> None:
        await node.enter()
        await node.pulse._beat(LEADER, 0)
        assert [*node.pulse.answers] == [0]
        node.pulse.answers.clear()
        node.registration.lease = 0
        await node.pulse._beat(LEADER, 0)
        assert not node.pulse.answers
        await node.store.close()

    asyncio.run(scene())


def test_an_answer_of_a_leader_who_has_been_replaced_counts_for_nothing(node: Node) -> None:
    async def scene() -> None:
        await node.enter()
        node.beats.meanwhile = lambda: node.pulse.follow(None, 9)
        await node.pulse._beat(LEADER, 0)
        assert node.pulse._confirmed == 0
        assert not node.pulse.answers
        assert node.pulse._heard_until == -math.inf
        await node.store.close()

    asyncio.run(scene())


def test_a_grant_is_for_one_round(node: Node) -> None:
    async def scene() -> None:
        await node.enter()
        await node.pulse._beat(LEADER, 0)
        node.member.take_header(replace(HEADER, number=1, token="u"), 9)
        node.member.report(Report(round=0, outcome="stopped"))
        node.member.take_place("u", PlaceRow(round=1, token="u", node_rank=1, first_rank=1))
        node.pulse.extend()
        assert node.pulse._heard_until == -math.inf
        await node.store.close()

    asyncio.run(scene())


def test_a_beat_of_the_round_before_grants_nothing(node: Node) -> None:
    def go_on() -> None:
        node.member.take_header(replace(HEADER, number=1, token="u"), 9)
        node.member.report(Report(round=0, outcome="stopped"))
        node.member.take_place("u", PlaceRow(round=1, token="u", node_rank=1, first_rank=1))
        node.pulse.extend()

    async def scene() -> None:
        await node.enter()
        node.beats.meanwhile = go_on
        await node.pulse._beat(LEADER, 0)
        assert node.pulse._heard_until == -math.inf
        await node.store.close()

    asyncio.run(scene())


def test_only_four_answers_are_kept(node: Node) -> None:
    async def scene() -> None:
        await node.enter()
        for fence in range(6):
            node.pulse.follow(LEADER, fence)
            await node.pulse._beat(LEADER, fence)
        assert [*node.pulse.answers] == [2, 3, 4, 5]
        await node.store.close()

    asyncio.run(scene())


def test_who_waits_is_heard_soon_by_a_leader_that_was_elected_just_now() -> None:
    async def scene() -> None:
        node = Node(replace(RULES, ttl=4000.0), LateBeats)
        await node.registration.open_lease()
        node.pulse.follow(LEADER, 7)
        beating = asyncio.create_task(node.pulse.run())
        await asyncio.wait_for(node.beats.answered.wait(), 60.0)  # much less than an interval
        beating.cancel()
        await node.store.close()

    asyncio.run(scene())
