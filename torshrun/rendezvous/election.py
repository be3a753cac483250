"""Elects the leader: decides when this node stands, and how long it may act as the leader."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torsh_runtime.store.base import Compare, Delete, Put
from torsh_runtime.transitions import Machine
from torshrun.rendezvous import rows
from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.heartbeats import Heartbeat, Heartbeats
from torshrun.rendezvous.lead import Lead
from torshrun.rendezvous.lease import inherited_until, leader_until
from torshrun.rendezvous.member import Member
from torshrun.rendezvous.registration import Registration
from torshrun.rendezvous.rows import Header, LeaderRow
from torshrun.rendezvous.settings import GRANT, misfit

_NEVER = 0, -math.inf


@dataclass(eq=False)
class Election:
    """Row of the leader in its present form. While it is this node's, this node leads."""

    asking: Asking
    member: Member
    registration: Registration
    answers: Mapping[int, float]
    """Times at which the leader of each fence last answered this node."""
    beats: Heartbeats
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    """Starts a task that ends with the node's part in the job at the latest."""

    def __post_init__(self) -> None:
        self._revision = 0  # that of what stands in the row's place, whatever it is
        self.leader: LeaderRow | None = None
        self.fence = 0
        """The revision of the leader's row; 0 while there is no leader."""
        self._last_fence = 0  # that of the term before, once another has begun, or it has ended
        self._stood: dict[str, tuple[int, float]] = {}
        """Of each row of this node by its token: the lease that it was written on, and when."""
        self._confirmed = -math.inf  # when it was last asked whether this node leads, and it did
        self.stands_at = math.inf
        """When this node is to stand for election."""
        self._lead: Lead | None = None
        self._task: asyncio.Task[None] | None = None
        self._seen = Machine("election", "no leader")

    @property
    def is_won(self) -> bool:
        """Return whether this node leads."""
        return self.leader is not None and self.leader.node == self.member.row.node

    @property
    def is_due(self) -> bool:
        """Return whether this node is to stand for election now, and may."""
        able = self.registration.written is not None and not self.member.row.leaving
        return able and not self.fence and self.asking.clock() >= self.stands_at

    # ---- the leader's row

    def take(self, leader: LeaderRow | None, revision: int) -> None:
        """Handle the leader's row in its present form."""
        fence = revision if leader else 0
        is_new = fence != self.fence
        if is_new:
            self.end()
            self._last_fence = self.fence or self._last_fence
            self._confirmed = self._stood.get(leader.token if leader else "", _NEVER)[1]
        self.leader, self.fence, self._revision = leader, fence, revision
        self._note()
        self.stands_at = math.inf if fence else self._soon()
        if self.is_won and not self._lead and not self.member.over:
            self._begin()

    def _note(self) -> None:
        if self.leader is None:
            self._seen.become("no leader")
        else:
            state = "leading" if self.is_won else "following"
            self._seen.become(state, f"fence {self.fence}", node=self.leader.node)

    def _soon(self) -> float:
        """Return when to stand for election.

        It is later if the last leader, who knows most, is still heard, or if this node is not of
        the round and so does not know when the last term ended.
        """
        last, header, now = self._last_fence, self.member.header, self.asking.clock()
        interval = self.asking.settings.interval
        heard = self.answers.get(last, -math.inf)
        soon = self.asking.chance.uniform(0, 0.02) if last else 0.0
        if now - heard < interval:
            soon += interval / 8
        elif heard == -math.inf and header and header.token != self.member.row.token:
            soon += interval
        return now + soon

    async def stand(self) -> None:
        """Write this node's row if there is no leader; the watch shows who won."""
        asking, settings, row = self.asking, self.asking.settings, self.member.row
        self.stands_at = asking.clock() + settings.interval  # if nothing comes of it
        self._seen.become("standing", f"since revision {self._revision}", node=row.node)
        leader = LeaderRow(
            node=row.node,
            endpoint=row.endpoint,
            token=f"{asking.chance.getrandbits(64):016x}",
            ttl=settings.ttl,
            outage_timeout=settings.outage_timeout,
            max_restarts=settings.max_restarts,
        )
        key, lease = asking.key(rows.LEADER), self.registration.lease
        self._stood[leader.token] = lease, asking.clock()
        put = Put(key, rows.encode(leader), lease)
        compare = Compare(key, self._revision)  # what is no leader's row is no leader
        await asking.ask(asking.store.transact((compare,), (put,)))

    async def confirm(self) -> None:
        """Ask whether this node still leads, if it does: the watch may lag behind another's row."""
        if self.is_won:
            sent, fence = self.asking.clock(), self.fence
            key = self.asking.key(rows.LEADER)
            entry = await self.asking.ask(self.asking.store.get(key))
            if entry and entry.value and entry.revision == fence == self.fence:
                self._confirmed = sent

    async def resign(self, timeout: float) -> None:
        """Let the others elect another leader at once. StoreError: they may have to wait."""
        if self.is_won:
            key = self.asking.key(rows.LEADER)
            request = self.asking.store.transact((Compare(key, self.fence),), (Delete(key),))
            await self.asking.ask(request, timeout)

    @property
    def misfit(self) -> str:
        """Return why this node cannot work with the leader, if there is one; "" if it can."""
        return misfit(self.asking.settings, self.leader) if self.leader else ""

    # ---- this node's term

    def _begin(self) -> None:
        now, node = self.asking.clock(), self.member.row.node
        view = ClusterState(self.asking.settings, node, now, self.fence)
        self._lead = Lead(self.asking, view, self._on_first_listing)
        revision = self.member.header_revision
        self._lead.take_header(self.member.header, revision, revision)
        self.beats.serve(self._judge)
        self._task = self.spawn(self._lead.run())

    def end(self) -> None:
        """Stop leading, if this node led."""
        self.beats.serve(None)
        self._lead = None
        if self._task:
            self._task.cancel()

    def take_header(self, header: Header | None, revision: int, as_of: int) -> None:
        """Handle the round as the store had it at the revision `as_of`."""
        if self._lead:
            self._lead.take_header(header, revision, as_of)

    def summaries(self, own: bytes) -> Mapping[str, bytes]:
        """Return the nodes' last summaries if this one leads; `own` is its own."""
        if not self._lead:
            return {}
        view = self._lead.view
        view.note_summary(view.node, own)
        return dict(view.nodes.summaries)

    def has_spare_for(self, node: str) -> bool:
        """Return whether this node leads and could replace `node`.

        That is so if `node` takes part in the round and another node waits for a place in one.
        """
        if not self._lead:
            return False
        view = self._lead.view
        takes_part = node in view.roster.inside and node not in view.wishes.drained
        return takes_part and any(map(view.stays, view.roster.newcomers))

    def leads_until(self) -> float:
        """Return until when this node may act as the leader; -inf if it is not the leader."""
        if not self._lead or self.registration.lease != self._lease:
            return -math.inf
        known_until = self._confirmed + GRANT * self.asking.settings.ttl
        lease_until = min(self.registration.lease_until, known_until)
        return leader_until(self._lead.view, lease_until, self.asking.clock())

    @property
    def _lease(self) -> int:
        """Return the lease of the leader's row, if it is this node's; else 0."""
        return self._stood.get(self.leader.token, _NEVER)[0] if self.leader else 0

    def _on_first_listing(self) -> None:
        """Note, after the first listing, until when missing nodes may still run workers."""
        if self._lead:
            view, now = self._lead.view, self.asking.clock()
            blind, inherited = inherited_until(view, self.answers, self._last_fence, now)
            view.sight = replace(view.sight, blind_until=blind, inherited_until=inherited)

    def _judge(self, beat: Heartbeat) -> bool:
        lead = self._lead
        if lead is None:
            return False
        was_heard = lead.view.hears(beat.node)
        lead.view.note_summary(beat.node, beat.summary)
        is_granted = lead.view.answer_beat(beat, self.asking.clock(), self.leads_until())
        if not was_heard:
            lead.news.set()
        return is_granted
