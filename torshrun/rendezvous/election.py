"""Who leads, and when this node stands for it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torsh_runtime.store.base import Compare, Delete, Put
from torshrun.rendezvous import rows
from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.member import Member
from torshrun.rendezvous.registration import Registration
from torshrun.rendezvous.rows import LeaderRow

_NEVER = 0, -math.inf


class Election:
    """The row of the leader, as it stands and as this node wants it."""

    def __init__(
        self,
        asking: Asking,
        member: Member,
        registration: Registration,
        answers: Mapping[int, float],
    ) -> None:
        """`answers` says when the leader of each fence last answered this node."""
        self._asking = asking
        self._member = member
        self._registration = registration
        self._answers = answers
        self._revision = 0
        """That of what stands in the row's place, whatever it is."""
        self.leader: LeaderRow | None = None
        self.fence = 0
        """The revision of the leader's row; 0 while there is no leader."""
        self.last_fence = 0
        """That of the term before, once another has begun, or it has ended."""
        self._stood: dict[str, tuple[int, float]] = {}
        """Of each row of this node by its token: the lease that it was written on, and when."""
        self.confirmed = -math.inf
        """When it was last asked whether this node leads, and it did."""
        self.stands_at = math.inf
        """When this node is to stand for election."""

    @property
    def is_won(self) -> bool:
        """Whether this node leads."""
        return self.leader is not None and self.leader.node == self._member.row.node

    @property
    def lease(self) -> int:
        """The lease that the leader's row stands on, if it is this node's; else 0."""
        return self._stood.get(self.leader.token, _NEVER)[0] if self.leader else 0

    @property
    def is_due(self) -> bool:
        """Whether this node is to stand now, and may."""
        able = self._registration.written is not None and not self._member.row.leaving
        return able and not self.fence and self._asking.clock() >= self.stands_at

    def take(self, leader: LeaderRow | None, revision: int) -> bool:
        """The row as it stands; whether another term has begun, or one has ended."""
        fence = revision if leader else 0
        is_new = fence != self.fence
        if self.fence and is_new:
            self.last_fence = self.fence
        self.leader, self.fence, self._revision = leader, fence, revision
        if is_new:
            self.confirmed = self._stood.get(leader.token if leader else "", _NEVER)[1]
        self.stands_at = math.inf
        self.plan()
        return is_new

    def plan(self) -> None:
        """If there is no leader stand soon; later if the last one is still heard, who knows most,
        or if this node is not of the round, and knows nothing of when the last one ended.
        """
        if self.fence or self.stands_at < math.inf:
            return
        last, header, now = self.last_fence, self._member.header, self._asking.clock()
        interval = self._asking.settings.interval
        heard = self._answers.get(last, -math.inf)
        soon = self._asking.chance.uniform(0, 0.02) if last else 0.0
        if now - heard < interval:
            soon += interval / 8
        elif heard == -math.inf and header and header.token != self._member.row.token:
            soon += interval
        self.stands_at = now + soon

    async def stand(self) -> None:
        """Write this node's row if there is no leader; the watch tells who won."""
        asking, settings, row = self._asking, self._asking.settings, self._member.row
        self.stands_at = asking.clock() + settings.interval  # if nothing comes of it
        leader = LeaderRow(
            node=row.node,
            endpoint=row.endpoint,
            token=f"{asking.chance.getrandbits(64):016x}",
            ttl=settings.ttl,
            outage_timeout=settings.outage_timeout,
        )
        key, lease = asking.key(rows.LEADER), self._registration.lease
        self._stood[leader.token] = lease, asking.clock()
        put = Put(key, rows.encode(leader), lease)
        compare = Compare(key, self._revision)  # what is no leader's row is no leader
        await asking.ask(asking.store.transact((compare,), (put,)))

    async def confirm(self) -> None:
        """If this node leads ask whether it still does: the row may have been replaced while its
        lease lives, and the watch lag behind.
        """
        if self.is_won:
            sent, fence = self._asking.clock(), self.fence
            key = self._asking.key(rows.LEADER)
            entry = await self._asking.ask(self._asking.store.get(key))
            if entry and entry.value and entry.revision == fence == self.fence:
                self.confirmed = sent

    async def resign(self, timeout: float) -> None:
        """Let the others elect another leader at once. StoreError: they may have to wait."""
        if self.is_won:
            key = self._asking.key(rows.LEADER)
            request = self._asking.store.transact((Compare(key, self.fence),), (Delete(key),))
            await self._asking.ask(request, timeout)

    def misfit(self, leader: LeaderRow) -> str:
        """Why this node cannot work with that leader, or ""."""
        for name in ("ttl", "outage_timeout"):
            ours, theirs = getattr(self._asking.settings, name), getattr(leader, name)
            if ours != theirs:
                return (
                    f"{name} is {ours:g} here and {theirs:g} on the other nodes: give all the same "
                    f"--rdzv-conf"
                )
        return ""

    def silence(self, leader: LeaderRow, seconds: float) -> str:
        """What to say of a leader who has not answered this node for so long."""
        return (
            f"{leader.node} leads, and has not answered at {leader.endpoint} for {seconds:g} s. "
            f"Look whether this node can reach it; if it is of an earlier job, torshctl forget "
            f"removes that"
        )
