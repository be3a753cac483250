"""Until when a node may act as the leader."""

from __future__ import annotations

import asyncio
import math
import random

from torsh_runtime.store.memory import MemoryStore
from torshrun.rendezvous import rows
from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.election import Election
from torshrun.rendezvous.heartbeats import Heartbeat, Heartbeats, Judge, Reply
from torshrun.rendezvous.member import Member
from torshrun.rendezvous.registration import Registration
from torshrun.rendezvous.rows import LeaderRow
from torshrun.rendezvous.settings import GRANT, NodeFacts, Settings

RULES = Settings(run_id="r", min_nodes=1, max_nodes=2, ttl=10.0)
FACTS = NodeFacts(node="a", host="a", address="a", endpoint="tcp:a:1", nproc=1)
NOW = 100.0


class NoBeats(Heartbeats):
    """Nobody is asked, and nobody asks."""

    async def beat(
        self, node: str, endpoint: str, fence: int, beat: Heartbeat, timeout: float
    ) -> Reply:
        return Reply("silent")

    def serve(self, judge: Judge | None) -> None:
        pass

    async def close(self) -> None:
        pass


def test_a_leader_leads_while_the_lease_of_its_row_lives_and_not_by_another_one() -> None:
    async def scene() -> None:
        store = MemoryStore()
        asking = Asking(store, RULES, lambda: NOW, random.Random(1))
        member = Member(RULES, FACTS)
        registration = Registration(asking, member, lambda: None)
        spawn = asyncio.get_running_loop().create_task
        election = Election(asking, member, registration, {}, NoBeats(), spawn)
        await registration.open_lease()
        assert await registration.write()
        await election.stand()
        entry = await store.get(asking.key(rows.LEADER))
        assert entry is not None
        election.take(rows.decode(LeaderRow, entry.value), entry.revision)
        assert election.leads_until() == NOW + GRANT * RULES.ttl
        await registration.open_lease()
        assert election.leads_until() == -math.inf
        election.end()
        await store.close()

    asyncio.run(scene())
