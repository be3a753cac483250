"""NodeRendezvous: one node's part in the rendezvous over a Store."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Listing
from torsh_runtime.transitions import Machine
from torshrun.health.clocks import SAME, CommonClock
from torshrun.rendezvous import rows
from torshrun.rendezvous.answers import Answers
from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.base import (
    Answer,
    Asked,
    JobOver,
    Lasting,
    Post,
    Rendezvous,
    RendezvousEvent,
    Report,
    RoundClosing,
    RoundOver,
    Standing,
    Summaries,
    check_summary,
)
from torshrun.rendezvous.election import Election
from torshrun.rendezvous.heartbeat_sender import HeartbeatSender
from torshrun.rendezvous.heartbeats import Heartbeats
from torshrun.rendezvous.member import Member
from torshrun.rendezvous.registration import Registration
from torshrun.rendezvous.rows import Header, LeaderRow, NodeRow, PlaceRow, VerdictRow, WaitRow
from torshrun.rendezvous.settings import NodeFacts
from torshrun.rendezvous.watch_cache import Items, WatchCache

CLOSE_TIMEOUT = 3.0
"""Seconds that giving everything back may take."""


@dataclass(eq=False)
class NodeRendezvous(Rendezvous):
    """A node's part in a job for one epoch of its run id: it ends early, by `lost`, if the store
    loses that. The store and the beats stay the caller's to close, after close().
    """

    asking: Asking
    """Client of a store that signs and reads only what is signed, with the clock of the loop."""
    facts: NodeFacts
    beats: Heartbeats
    listing: Listing | None = field(default=None, repr=False)  # it may hold the job's secret
    """Listing of what all nodes watch, as it was read when the epoch was entered."""
    before: NodeRow | None = None
    """Row of this node in the epoch before."""
    is_proven: bool = True
    """True if the epoch surely is the present one: a leader who lives has answered for it.

    Until then this node trusts nothing that is signed, and does not lead.
    """

    def __post_init__(self) -> None:
        self._settings = self.asking.settings
        self._clock = self.asking.clock
        self._member = Member(self._settings, self.facts, self.before)
        self._seen = Machine("member", self._member.status)
        self._make_parts()
        self._unread: dict[str, tuple[bytes | None, int, int]] = {}
        """What was seen until then, by name; see `_take`."""
        self._post: Post = lambda event: None
        self._tasks: set[asyncio.Task[None]] = set()
        self._due = asyncio.Event()
        self.lost: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Done when the store has lost the epoch, and no worker of it runs here any more. True if
        nothing stands there, and this node was out of touch: the job may have ended."""
        self._is_lost = False  # whether the store has lost the epoch
        self._is_gone = False  # whether no other epoch stood in the place of the one that was lost
        self._newest_header = (0, -1, False, False, False)
        """Fence, number, and whether it was closing, mending, and that at once, of the newest
        header seen."""
        self._started = 0.0
        self._over = self._has_summaries = False

    def _make_parts(self) -> None:
        """Create the parts; the module of each says what it does."""
        asking, member, beats = self.asking, self._member, self.beats
        self._registration = Registration(asking, member, self._lease_lost)
        self._answers = Answers(asking, self.facts.node)
        self._control = WatchCache(asking, rows.CONTROL, self._take_change, self._take_control)
        self._pulse = HeartbeatSender(
            beats,
            asking,
            member,
            self._registration,
            leads_until=lambda: self._election.leads_until(),
            tell=self._tell,
            on_answer=self._prove,
            post=lambda event: self._post(event),
        )
        self._election = Election(
            asking, member, self._registration, self._pulse.answers, beats, self._spawn
        )

    # ---- the agent's side

    def start(self, post: Post) -> None:
        self._post = post
        self._started = self._clock()
        row = self._member.row
        if not rows.can_be_read(row):
            what = f"address {row.address!r}, endpoint {row.endpoint!r}"
            self._tell(self._member.give_up(f"other nodes could not reach this one: {what}"))
            return
        self._spawn(self._control.follow(self.listing))
        for work in (self._work, self._renew, self._pulse.run):
            self._spawn(work())

    @property
    def past(self) -> NodeRow:
        """Return what the next epoch is to know of this node."""
        return self._member.past

    def report(self, report: Report) -> None:
        self._tell(self._member.report(report))
        self._pulse.disarm()
        self._note_lost()

    def mend(self, number: int, standing: Standing, seconds: float, lost: bool) -> None:
        self._tell(self._member.mend(number, standing, seconds, lost))

    def note_lasting(self, lasting: Lasting) -> None:
        self._tell(self._member.note_lasting(lasting))

    def hold_growth(self, is_held: bool) -> None:
        """Note whether this node's workers want no node to be added to the job."""
        self._tell(self._member.hold_growth(is_held))

    def note_standbys(self, count: int) -> None:
        self._member.note_standbys(count)
        self._tell(())

    def tell_leader(self, summary: bytes) -> None:
        self._pulse.summary = check_summary(summary)

    def common_clock(self, at: float) -> CommonClock | None:
        if self._election.is_won:
            return CommonClock(self._member.row.node, SAME)
        return self._pulse.common_clock(at)

    def replace(self, node: str) -> bool:
        if not self._election.has_spare_for(node):
            return False
        self._spawn(self._ask_to_go(node))
        return True

    async def _ask_to_go(self, node: str) -> None:
        store, key = self.asking.store, self.asking.key(rows.WANT_DRAIN + node)
        with suppress(StoreError):
            lease = await self.asking.ask(store.grant(rows.DRAIN_KEPT))
            await self.asking.ask(store.put(key, rows.SET, lease))

    def leave(self, outcome: Literal["preempted", "stopped"], code: int, reason: str) -> None:
        self._tell(self._member.leave(outcome, code, reason))

    async def answer(self, asked: Asked, answer: Answer) -> None:
        await self._answers.write(asked, answer)

    async def close(self) -> None:
        self._over = True
        self._pulse.disarm()
        self._election.end()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self._is_lost:  # else nothing there is this node's
            with suppress(StoreError):
                await self.asking.ask(self._give_back(), CLOSE_TIMEOUT)

    async def _resign(self) -> None:
        with suppress(StoreError):
            await self._election.resign(CLOSE_TIMEOUT)

    async def _give_back(self) -> None:
        """End the registration.

        A row that says how this node left stays readable until its lease ends.
        """
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
        self._note(events)
        row = self._member.row
        if self._over and row.state == "left" and self._election.is_won:
            self._election.end()
            self._spawn(self._resign())
        if row.state == "left" and not self._over and row.leaving:
            loop = asyncio.get_running_loop()
            loop.call_later(2 * self._settings.interval, self._left)
        self._due.set()

    def _note(self, events: tuple[RendezvousEvent, ...]) -> None:
        ended = (RoundClosing, RoundOver)
        why = next((event.reason for event in events if isinstance(event, ended)), "")
        row = self._member.row
        self._seen.become(self._member.status, why, round=row.round, node=self.facts.host)

    def _left(self) -> None:
        self._tell(self._member.left())

    # ---- control: what all nodes watch

    def _take_control(self, items: Items) -> None:
        found = {rows.CONTROL + name: (value, revision) for name, value, revision in items}
        self._registration.doubt()  # what broke the watch may have lost this node's row
        self._due.set()
        is_ours = bool(found.get(rows.EPOCH, (b"", 0))[0])
        for name in (rows.VERDICT, rows.ROUND, rows.EPOCH, rows.LEADER, rows.WAIT):
            value, revision = found.get(name, (None, 0))
            if is_ours or value or name == rows.EPOCH:  # what is signed may tell why it is over
                self._take(name, value, revision, self._control.listed)
        for name in sorted(found):
            self._take_question(name, found[name][0])

    def _take_change(self, name: str, value: bytes | None, revision: int) -> None:
        self._take(rows.CONTROL + name, value, revision if value is not None else 0, revision)
        self._take_question(rows.CONTROL + name, value)

    def _take(self, name: str, value: bytes | None, revision: int, as_of: int) -> None:
        """Handle a value and the revision since which the store has it.

        `as_of` is the revision at which it was seen.
        """
        if self._is_lost:
            return
        if name == rows.EPOCH and not value:  # gone, or another's, which is signed with another key
            self.lose(is_gone=value is None)
        elif not self.is_proven and name in (rows.ROUND, rows.VERDICT, rows.WAIT):
            self._unread[name] = value, revision, as_of
        elif name == rows.LEADER:
            self._take_leader(rows.decode(LeaderRow, value), revision)
        elif name == rows.ROUND:
            self._take_header(rows.decode(Header, value), revision, as_of)
        elif name == rows.VERDICT and (verdict := rows.decode(VerdictRow, value)):
            self._tell(self._member.take_verdict(verdict))
        elif name == rows.WAIT:
            wait = rows.decode(WaitRow, value)
            self._tell(self._member.take_wait(wait.why if wait else ""))

    def _take_question(self, name: str, value: bytes | None) -> None:
        """Post a question to the agent.

        A node that is not sure of the epoch is not part of the job yet, and does not answer.
        """
        if self.is_proven and not self._is_lost and (asked := self._answers.take(name, value)):
            self._post(asked)

    def _prove(self) -> None:
        """Handle that a leader has answered, which proves that it has the epoch's key."""
        if not self.is_proven:
            self.is_proven, unread = True, self._unread
            self._check_fit()
            for name, seen in unread.items():
                self._take(name, *seen)

    def _doubt(self) -> None:
        """Give up on an epoch for which nobody answers.

        If nobody leads, another epoch is begun, but not while nodes of a round of this one may
        still run workers. If somebody leads and does not answer, this node has no part in the job.
        """
        settings, leader = self._settings, self._election.leader
        most = 2 * settings.ttl
        if leader:
            most = settings.join_timeout
        elif self._unread.get(rows.ROUND, (None,))[0]:
            most += settings.outage_timeout
        if self._clock() - self._started <= most:
            self._tell(self._member.doubt(leader, most))
        elif leader:
            why = (
                f"{leader.node} leads, and has not answered at {leader.endpoint} for {most:g} s. "
                f"Look whether this node can reach it; if it is of an earlier job, torshctl forget "
                f"removes that"
            )
            self._tell(self._member.give_up(why))
        else:
            self.lose()

    def lose(self, *, is_gone: bool = False) -> None:
        """Stop, and ignore the epoch: the store has lost it, or was restored to an earlier state.

        `is_gone`: the store has no other epoch either.
        """
        if self._over or self._is_lost:
            return
        self._is_lost, self._is_gone = True, is_gone
        self._election.end()
        for task in self._tasks:
            task.cancel()
        self._tell(self._member.lose_epoch())
        self._note_lost()

    def _note_lost(self) -> None:
        if not self._is_lost or self._member.takes_part:
            return
        self._tell(self._member.left())  # if it was about to go
        # Who has come back to the store since it lost touch would have found how the job ended.
        is_back = self._registration.written == self._member.row
        was_away = self._is_gone and self._member.dropped and not is_back
        if not (self._over or self.lost.done()):
            self.lost.set_result(was_away)

    def _take_header(self, header: Header | None, revision: int, as_of: int) -> None:
        if header:
            is_hasty = header.mending and not header.at_commit
            age = header.fence, header.number, header.phase == "closing", header.mending, is_hasty
            if age < self._newest_header:  # the store was put back, or somebody did that to the row
                self.lose()
                return
            self._newest_header = age
        self._election.take_header(header, revision, as_of)
        self._tell(self._member.take_header(header, revision))

    # ---- leadership

    def _take_leader(self, leader: LeaderRow | None, revision: int) -> None:
        self._election.take(leader, revision)
        self._check_fit()
        self._pulse.follow(leader, self._election.fence)
        self._due.set()

    def _check_fit(self) -> None:
        if self.is_proven and (why := self._election.misfit):
            self._tell(self._member.give_up(why))

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
                await self.asking.pause()

    async def _wait_until_due(self) -> None:
        seconds = min(self._election.stands_at - self._clock(), self._settings.ttl)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.001)):
                await self._due.wait()

    async def _do_next(self) -> bool:
        """Make one request or a few; return False if there was nothing to do."""
        registration, member = self._registration, self._member
        if not registration.lease:
            await registration.open_lease()
            self._pulse.beat_soon()
        elif registration.is_due and not self._election.misfit:  # else it is about to give up
            if await registration.write():
                self._on_written()
            else:  # why, a listing tells: a watch of a store that was overtaken tells nothing
                await self.asking.pause()
                await self._control.refresh()
        elif member.is_entering and registration.written == member.row:
            if await registration.renew():  # the lease was about to end
                self._on_written()
            await self.asking.pause()
        elif member.wants_place:
            await self._read_place()
        elif self.is_proven and self._election.is_due:
            await self._election.stand()
        else:
            return False
        return True

    def _on_written(self) -> None:
        member = self._member
        if member.row.state == "left":
            if self._registration.written == member.row:  # and not the version before
                self._left()
        elif member.is_entering and self._registration.until > self._clock():
            self._pulse.extend()
            self._tell(member.entered())
            self._pulse.arm()

    async def _read_place(self) -> None:
        header = self._member.header
        assert header is not None
        key = self.asking.key(rows.PLACES + self._member.row.node)
        entry = await self.asking.ask(self.asking.store.get(key))
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
                    await self._election.confirm()
                self._pulse.extend()
            self._share_summaries()
            self._give_up_in_time()
            if not self.is_proven:
                self._doubt()

    def _share_summaries(self) -> None:
        """Share the summaries with the agent here, if this node leads.

        Share their absence only once.
        """
        summaries = self._election.summaries(self._pulse.summary)
        if summaries or self._has_summaries:
            self._tell((Summaries(summaries),))
        self._has_summaries = bool(summaries)

    def _lease_lost(self) -> None:
        """Handle that the lease has ended.

        The row ended with it, so nobody relies on this node by the store.
        """
        self._pulse.answers.clear()
        self._due.set()

    def _give_up_in_time(self) -> None:
        """Give up if a node without a round has had no answer of the store for the join timeout."""
        since = max(self._registration.renewed, self._started)
        silence = self._clock() - since
        self._tell(self._member.take_silence(silence > self._settings.ttl))
        if silence > self._settings.join_timeout and not self._member.takes_part:
            why = (
                f"the store has not answered for {silence:.0f} s. Look whether it runs, and "
                f"whether this node can reach it. Last error: {self.asking.trouble or 'none'}"
            )
            self._tell(self._member.give_up(why))
