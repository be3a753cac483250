"""A node's part in a job: it joins anew when the store has lost what it held."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from torsh_runtime.errors import TorshError
from torsh_runtime.store.base import Listing, Store
from torsh_runtime.store.signed import SignedStore
from torshrun import exit_codes
from torshrun.health.clocks import CommonClock
from torshrun.rendezvous import base
from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.epoch import Epoch, EpochJoin, JobUnknown
from torshrun.rendezvous.handler import NodeRendezvous
from torshrun.rendezvous.heartbeats import Heartbeats
from torshrun.rendezvous.rows import NodeRow
from torshrun.rendezvous.settings import NodeFacts, Settings

Prepare = Callable[[Store, Epoch], Awaitable[tuple[NodeFacts, Heartbeats]]]
"""Makes what this node is reached by in an epoch, whose store signs; the beats are closed later."""


@dataclass(eq=False)
class EpochRendezvous(base.Rendezvous):
    """Takes part in one epoch after the other; the store is the caller's to close after close()."""

    meet: Callable[[], Awaitable[Store]]
    """Finds the store."""
    settings: Settings
    secret: bytes = field(repr=False)
    """Secret of this node; b"" takes the job's from the store."""
    prepare: Prepare
    clock: Callable[[], float] = time.monotonic
    chance: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self._post: base.Post = lambda event: None
        self._task: asyncio.Task[None] | None = None
        self._node: NodeRendezvous | None = None
        self._beats: Heartbeats | None = None
        self._leaving: base.JobOver | None = None  # how it ends, once this node has been told to go
        self._over = False
        self._standbys = 0
        self._summary = b""

    def start(self, post: base.Post) -> None:
        self._post = post
        self._task = asyncio.get_running_loop().create_task(self._run())

    def report(self, report: base.Report) -> None:
        if self._node:
            self._node.report(report)

    def mend(self, number: int, standing: base.Standing, seconds: float, lost: bool) -> None:
        if self._node:
            self._node.mend(number, standing, seconds, lost)

    def note_lasting(self, lasting: base.Lasting) -> None:
        if self._node:
            self._node.note_lasting(lasting)

    def hold_growth(self, is_held: bool) -> None:
        """Note whether this node's workers want no node to be added to the job."""
        if self._node:
            self._node.hold_growth(is_held)

    def note_standbys(self, count: int) -> None:
        """Note how many processes wait here to become workers, for those who look at the job."""
        self._standbys = count
        if self._node:
            self._node.note_standbys(count)

    def tell_leader(self, summary: bytes) -> None:
        self._summary = base.check_summary(summary)
        if self._node:
            self._node.tell_leader(summary)

    def common_clock(self, at: float) -> CommonClock | None:
        return self._node.common_clock(at) if self._node else None

    def replace(self, node: str) -> bool:
        return self._node is not None and self._node.replace(node)

    def leave(self, outcome: Literal["preempted", "stopped"], code: int, reason: str) -> None:
        self._leaving = base.JobOver(base.Verdict(outcome=outcome, code=code, reason=reason))
        if self._node:
            self._node.leave(outcome, code, reason)
        else:
            self._pass_on(self._leaving)

    async def answer(self, asked: base.Asked, answer: base.Answer) -> None:
        if self._node:
            await self._node.answer(asked, answer)

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._close_node()

    def _pass_on(self, event: base.RendezvousEvent) -> None:
        is_last = isinstance(event, base.JobOver)
        if not (self._over and (is_last or isinstance(event, base.StandingBy))):
            self._over = self._over or is_last
            self._post(event)

    async def _run(self) -> None:
        try:
            await self._live(await self.meet())
        except JobUnknown as error:
            self.end(exit_codes.LOST, str(error))
        except (TorshError, OSError) as error:
            self.end(exit_codes.RENDEZVOUS, f"cannot join the job: {error}")
        except Exception as error:
            self.end(exit_codes.LOST, f"internal error; please report this: {error!r}")

    async def _live(self, store: Store) -> None:
        entrance = EpochJoin(self._ask_of(store), self.secret, self.say)
        last, was_away, past = None, False, None
        while not self._over:
            epoch, listing = await entrance.enter(last, may_begin=not was_away)
            self._node = await self._join(store, epoch, listing, past)
            self._node.start(self._pass_on)
            self._node.note_standbys(self._standbys)
            self._node.tell_leader(self._summary)
            was_away = await self._node.lost
            past = self._node.past
            last = epoch if self._node.is_proven else None
            if not last:
                entrance.abandon(epoch)
            if self._leaving:
                self._pass_on(self._leaving)
            await self._close_node()

    async def _join(
        self, store: Store, epoch: Epoch, listing: Listing, past: NodeRow | None
    ) -> NodeRendezvous:
        signed = SignedStore(store, epoch.records, *epoch.guards, on_older=self._on_older)
        facts, self._beats = await self.prepare(signed, epoch)
        return NodeRendezvous(
            self._ask_of(signed),
            facts,
            self._beats,
            listing=signed.read(listing),
            before=past,
            is_proven=epoch.is_proven,
        )

    def _ask_of(self, store: Store) -> Asking:
        return Asking(store, self.settings, self.clock, self.chance)

    def _on_older(self) -> None:
        if self._node:
            self._node.lose()

    async def _close_node(self) -> None:
        node, self._node = self._node, None
        if node:
            await node.close()  # or it is cancelled here: then close() comes again, for the beats
        beats, self._beats = self._beats, None
        if beats:
            await beats.close()

    def say(self, why: str) -> None:
        """Report to people why this node has no place yet."""
        self._pass_on(base.StandingBy(why))

    def end(self, code: int, reason: str) -> None:
        """End without learning how the job ends."""
        self._pass_on(base.JobOver(base.Verdict(outcome="lost", code=code, reason=reason)))
