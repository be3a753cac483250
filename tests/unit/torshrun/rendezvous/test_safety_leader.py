"""What a leader may take for the present: not a listing from before its round was closing."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from typing import Literal

import pytest

from torsh_runtime.store.base import Listing
from torsh_runtime.store.memory import MemoryStore
from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.heartbeats import Heartbeat
from torshrun.rendezvous.lead import Lead
from torshrun.rendezvous.rows import Header
from torshrun.rendezvous.settings import Settings

RULES = Settings(run_id="r", min_nodes=1, max_nodes=2, ttl=4)
CLOSING = Header(number=0, phase="closing", token="t", fence=1, leader="a", size=1, world_size=1)


class Behind(MemoryStore):
    """Lists from a member that is so many revisions behind."""

    revision = 0

    async def list(self, prefix: str) -> Listing:
        return Listing((), self.revision)


@pytest.mark.parametrize(("revision", "counts"), [(8, False), (9, True), (10, True)])
def test_only_a_listing_since_the_round_is_closing_tells_who_entered_it(
    revision: int, counts: bool
) -> None:
    async def scene() -> bool:
        store = Behind()
        store.revision = revision
        view = ClusterState(RULES, "a", time.monotonic())
        asking = Asking(store, RULES, time.monotonic, random.Random(1))
        lead = Lead(asking, view, lambda: None)
        lead.take_header(CLOSING, 9, 9)
        await lead._list()
        await store.close()
        return view.sight.listed_since_close

    assert asyncio.run(scene()) is counts


@pytest.mark.parametrize(
    ("token", "phase", "granted"),
    [("t", "open", True), ("before", "open", False), ("t", "closing", False)],
)
def test_a_leader_grants_the_round_that_is_open_alone(
    token: str, phase: Literal["open", "closing"], granted: bool
) -> None:
    view = ClusterState(RULES, "a", 0.0)
    view.take_header(replace(CLOSING, phase=phase), 0.0)
    beat = Heartbeat(node="b", round=0, token=token, number=1, confirmed=0)
    assert view.answer_beat(beat, now=1.0, grant_until=2.0) is granted
    assert not view.answer_beat(replace(beat, number=2), now=2.0, grant_until=2.0)
