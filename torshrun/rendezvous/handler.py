"""NodeRendezvous: one node's part in the rendezvous over a Store."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Compare, Delete, Put, Store
from torshrun.rendezvous import rows
from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.base import JobOver, Post, Rendezvous, RendezvousEvent, Report
from torshrun.rendezvous.beats import Beat, Beats
from torshrun.rendezvous.grant import Term, inherited_until, leader_until
from torshrun.rendezvous.lead import Lead
from torshrun.rendezvous.member import Member
from torshrun.rendezvous.mirror import Items, Mirror
from torshrun.rendezvous.pulse import Pulse
from torshrun.rendezvous.registration import Registration
from torshrun.rendezvous.rows import Header, LeaderRow, PlaceRow, VerdictRow
from torshrun.rendezvous.settings import NodeFacts, Settings
from torshrun.rendezvous.view import View

CLOSE_TIMEOUT = 3.0
"""Seconds that giving everything back may take."""


class NodeRendezvous(Rendezvous):
    """The store and the beats stay the caller's to close, after close()."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        facts: NodeFacts,
        beats: Beats,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        """`clock` must be the one that the loop's timers follow."""
        self._settings = settings
        self._facts = facts
        self._beats = beats
        self._clock = clock
        self._chance = chance or random.Random()
        self._asking = Asking(store, settings, clock, self._chance)
        self._member = Member(settings, facts)
        self._registration = Registration(self._asking.another(), self._member, self._lease_lost)
        self._control = Mirror(
            self._asking.another(), rows.CONTROL, self._take_control, self._take_change
        )
        self._pulse = Pulse(
            beats,
            self._asking.another(),
            self._member,
            self._registration,
            leads_until=self._leads_until,
            tell=self._tell,
            post=lambda event: self._post(event),
        )
        self._post: Post = lambda event: None
        self._tasks: set[asyncio.Task[None]] = set()
        self._due = asyncio.Event()
        self._leader: LeaderRow | None = None
        self._fence = 0
        """The revision of the leader's row; 0 while there is no leader."""
        self._leader_revision = 0
        """That of what stands in its place, whatever it is."""
        self._last_term: Term | None = None
        self._seen_control = False
        self._campaign_at = math.inf
        self._election_token = ""
        self._lead: Lead | None = None
        self._lead_task: asyncio.Task[None] | None = None
        self._view: View | None = None
        self._started = 0.0
        self._term_lease = 0
        """The lease that the leader's row of this node is on."""
        self._ended_before = False
        """Whether the run id still stands for a job that ended before this node came."""
        self._over = False

    # ---- the agent's side

    def start(self, post: Post) -> None:
        self._post = post
        self._started = self._clock()
        for work in (self._control.follow, self._work, self._renew, self._pulse.run):
            self._spawn(work())

    def report(self, report: Report) -> None:
        self._tell(self._member.report(report))
        self._pulse.disarm()

    def leave(self, outcome: Literal["preempted", "stopped"], code: int, reason: str) -> None:
        self._tell(self._member.leave(outcome, code, reason))

    async def close(self) -> None:
        self._over = True
        self._pulse.disarm()
        self._beats.serve(None)
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(StoreError):
            await self._asking.ask(self._give_back(), CLOSE_TIMEOUT)

    async def _resign(self) -> None:
        """Let the others elect another leader at once."""
        if self._leads():
            key, fence = self._asking.key(rows.LEADER), self._fence
            with suppress(StoreError):
                request = self._asking.store.transact((Compare(key, fence),), (Delete(key),))
                await self._asking.ask(request, CLOSE_TIMEOUT)

    async def _give_back(self) -> None:
        """A row that says how this node left is still to be read, until its lease ends."""
        await self._resign()
        written = self._registration.written
        await self._registration.end(keep_row=bool(written and written.state == "left"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a mistake of our own: end here, do not hang
            self._tell(self._member.give_up(f"internal error in the rendezvous: {error!r}"))
            facts = {"message": "internal error in the rendezvous", "exception": error}
            asyncio.get_running_loop().call_exception_handler(facts)

    def _tell(self, events: tuple[RendezvousEvent, ...]) -> None:
        for event in events:
            if not self._over:
                self._over = isinstance(event, JobOver)
                self._post(event)
        row = self._member.row
        if self._over and row.state == "left" and self._leads():
            self._end_term()
            self._spawn(self._resign())
        if row.state == "left" and not self._over and row.leaving:
            loop = asyncio.get_running_loop()
            loop.call_later(2 * self._settings.interval, self._left)
        self._due.set()

    def _left(self) -> None:
        self._tell(self._member.left())

    # ---- control: what all nodes watch

    def _take_control(self, items: Items) -> None:
        late, self._seen_control = not self._seen_control, True
        found = {rows.CONTROL + name: (value, revision) for name, value, revision in items}
        for name in (rows.VERDICT, rows.ROUND, rows.LEADER):
            value, revision = found.get(name, (None, 0))
            self._take(name, value, revision, late=late)

    def _take_change(self, name: str, value: bytes | None, revision: int) -> None:
        self._take(rows.CONTROL + name, value, revision if value is not None else 0, late=False)

    def _take(self, name: str, value: bytes | None, revision: int, *, late: bool) -> None:
        if name == rows.LEADER:
            self._take_leader(rows.decode(LeaderRow, value) if value else None, revision)
        elif name == rows.ROUND:
            self._take_header(rows.decode(Header, value) if value else None, revision)
        elif name == rows.VERDICT:
            self._take_verdict(rows.decode(VerdictRow, value) if value else None, late=late)

    def _take_verdict(self, verdict: VerdictRow | None, *, late: bool) -> None:
        self._ended_before = verdict is not None and late and not verdict.sticky
        if verdict is not None:
            self._tell(self._member.take_verdict(verdict, late=late))
        else:
            self._plan_campaign()

    def _take_header(self, header: Header | None, revision: int) -> None:
        if self._ended_before:
            header = None
        if self._lead:
            self._lead.take_header(header, revision)
        self._tell(self._member.take_header(header, revision))

    # ---- leadership

    def _leads(self) -> bool:
        return self._leader is not None and self._leader.node == self._facts.node

    def _take_leader(self, leader: LeaderRow | None, revision: int) -> None:
        why = self._misfit(leader) if leader else ""
        if why:
            self._tell(self._member.give_up(why))
        fence = revision if leader else 0
        if self._fence and fence != self._fence:
            self._last_term = Term(self._fence, self._leader.node if self._leader else "")
        if fence != self._fence:
            self._end_term()
        self._leader, self._fence, self._leader_revision = leader, fence, revision
        self._campaign_at = math.inf
        if leader is None:
            self._plan_campaign()
        elif self._leads():
            self._begin_term()
        self._pulse.follow(leader, fence)

    def _misfit(self, leader: LeaderRow) -> str:
        """Why this node cannot work with that leader, or ""."""
        for name in ("ttl", "outage_timeout"):
            ours, theirs = getattr(self._settings, name), getattr(leader, name)
            if ours != theirs:
                return (
                    f"{name} is {ours:g} here and {theirs:g} on the other nodes: give all the same "
                    f"--rdzv-conf"
                )
        if leader.secret_id != self._facts.secret_id:
            return (
                "this node's secret differs from that of the job: TORSH_SECRET / --secret-file "
                "must be the same everywhere"
            )
        return ""

    def _plan_campaign(self) -> None:
        """Stand for election soon; later if the last leader is still heard, who knows most, or if
        nothing is known here of when it ended.
        """
        if self._fence or self._campaign_at < math.inf or self._ended_before:
            return
        last = self._last_term
        heard = self._pulse.hearing.answers.get(last.fence, -math.inf) if last else -math.inf
        soon = self._chance.uniform(0, 0.02) if last else 0.0
        if self._clock() - heard < self._settings.interval:
            soon += self._settings.interval / 8
        elif heard == -math.inf and self._member.header and not self._member.takes_part:
            soon += self._settings.interval / 4
        self._campaign_at = self._clock() + soon
        self._due.set()

    async def _campaign(self) -> None:
        self._campaign_at = self._clock() + self._settings.interval  # if nothing comes of it
        self._election_token = f"{self._chance.getrandbits(64):016x}"
        leader = LeaderRow(
            node=self._facts.node,
            endpoint=self._facts.endpoint,
            token=self._election_token,
            ttl=self._settings.ttl,
            outage_timeout=self._settings.outage_timeout,
            secret_id=self._facts.secret_id,
        )
        key = self._asking.key(rows.LEADER)
        self._term_lease = self._registration.lease
        put = Put(key, rows.encode(leader), self._registration.lease)
        compare = Compare(key, self._leader_revision)  # what is no leader's row is no leader
        await self._asking.ask(self._asking.store.transact((compare,), (put,)))

    def _begin_term(self) -> None:
        if self._lead or self._over:
            return
        now = self._clock()
        view = View(self._settings, self._facts.node, now)
        view.fence = self._fence
        self._pulse.hearing.led.add(self._fence)
        view.take_header(self._member.header, now)
        if self._view is not None:
            view.remember(self._view)
        self._view = view
        revision = self._member.header_revision
        self._lead = Lead(
            self._asking.another(), view, self._facts.endpoint, revision, self._on_first_listing
        )
        self._beats.serve(self._judge)
        self._lead_task = self._spawn(self._lead.run())

    def _on_first_listing(self) -> None:
        """The leader knows now who is there, and so who is missing."""
        view, last = self._view, self._last_term
        if view is not None:
            view.blind_until, view.inherited_until = inherited_until(
                view, self._pulse.hearing, last, self._settings, self._clock()
            )

    def _end_term(self) -> None:
        self._beats.serve(None)
        self._lead = None
        if self._lead_task:
            self._lead_task.cancel()
            self._lead_task = None

    def _judge(self, beat: Beat) -> bool:
        view = self._view
        return view is not None and view.judge(beat, self._clock(), self._leads_until())

    def _leads_until(self) -> float:
        if self._view is None or not self._lead or self._registration.lease != self._term_lease:
            return -math.inf
        lease_until = self._registration.lease_until
        return leader_until(self._view, self._settings, lease_until, self._clock())

    # ---- what is to be written and read

    async def _work(self) -> None:
        """Write and read what the member wants, as soon as it wants it."""
        while not self._over:
            self._due.clear()
            try:
                if not await self._do_next():
                    await self._wait_until_due()
            except StoreError:
                if self._registration.lease:
                    with suppress(StoreError):
                        await self._registration.renew()
                await self._asking.pause()

    async def _wait_until_due(self) -> None:
        seconds = min(self._campaign_at - self._clock(), self._settings.ttl)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.001)):
                await self._due.wait()

    async def _do_next(self) -> bool:
        """One request or a few; False if there was nothing to do."""
        registration, member = self._registration, self._member
        if not registration.lease:
            await registration.open_lease()
            self._pulse.beat_soon()
        elif registration.is_due:
            if await registration.write():
                self._on_written()
            else:
                await self._asking.pause()  # the watch will tell why
        elif member.status == "entering" and registration.written == member.row:
            if await registration.renew():  # the lease was about to end
                self._on_written()
            await self._asking.pause()
        elif member.wants_place:
            await self._read_place()
        elif self._may_campaign():
            await self._campaign()
        else:
            return False
        return True

    def _may_campaign(self) -> bool:
        row = self._registration.written
        able = row is not None and not self._member.row.leaving and not self._ended_before
        return able and not self._fence and self._clock() >= self._campaign_at

    def _on_written(self) -> None:
        member = self._member
        if member.row.state == "left":
            if self._registration.written == member.row:  # and not the version before
                self._left()
        elif member.status == "entering" and self._registration.until > self._clock():
            self._pulse.extend()
            self._tell(member.entered())
            self._pulse.arm()

    async def _read_place(self) -> None:
        header = self._member.header
        assert header is not None
        key = self._asking.key(rows.PLACES + self._facts.node)
        entry = await self._asking.ask(self._asking.store.get(key))
        place = rows.decode(PlaceRow, entry.value) if entry else None
        self._tell(self._member.take_place(header.token, place))

    # ---- signs of life

    async def _renew(self) -> None:
        """Renew the lease at every interval, also while workers end because the job is over."""
        while True:
            await asyncio.sleep(self._settings.interval)
            if self._registration.lease:
                with suppress(StoreError):
                    await self._registration.renew()
                self._pulse.extend()
            self._give_up_in_time()

    def _lease_lost(self) -> None:
        """The leases' end took the row with it: nobody counts on this node by the store now."""
        self._pulse.hearing.answers.clear()
        self._due.set()

    def _give_up_in_time(self) -> None:
        """A node without a round does not look for the store for ever."""
        since = max(self._registration.renewed, self._started)
        silence = self._clock() - since
        if silence > self._settings.join_timeout and not self._member.takes_part:
            why = f"the store has not answered for {silence:.0f} s. Look whether it runs, and"
            self._tell(self._member.give_up(f"{why} whether this node can reach it."))
