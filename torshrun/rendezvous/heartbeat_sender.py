"""Signs of life: this node's beats to the leader, and the grant that they and its lease give it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from torsh_runtime.transitions import Machine
from torshrun.health.clocks import ClockEstimator, CommonClock, Exchange
from torshrun.rendezvous.asking import FIRST_PAUSE, Asking
from torshrun.rendezvous.base import Granted, Post
from torshrun.rendezvous.heartbeats import Heartbeat, Heartbeats
from torshrun.rendezvous.lease import WARNING
from torshrun.rendezvous.member import Events, Member
from torshrun.rendezvous.registration import Registration
from torshrun.rendezvous.rows import LeaderRow
from torshrun.rendezvous.settings import GRANT

ANSWERS_KEPT = 4
"""Number of leaders, the latest ones, whose answers are kept."""
MOST_QUICK, CROWD = 8, 256
"""Numbers of beats that follow each other at once when a leader or a round is new.

The leader's clock is then known soon. MOST_QUICK is the limit of a node, down to QUICK_AGAIN if all
nodes together would exceed CROWD.
"""
QUICK_AGAIN, EVERY = 2, 4
"""Number of beats that follow at once after every EVERY beats.

The first wakes the processors, which takes longer than all else, and longer on one side.
"""
EARLY = 3
"""Number of beats a quarter of the interval apart, once a round has begun.

Workers start then, which delays messages, and a drift shows only later.
"""


@dataclass(eq=False)
class HeartbeatSender:
    """Beats while `run` runs, and posts each longer grant."""

    beats: Heartbeats
    asking: Asking
    member: Member
    registration: Registration
    leads_until: Callable[[], float]
    """Says until when this node may act as the leader; -inf if it is none."""
    tell: Callable[[Events], None]
    on_answer: Callable[[], None]
    """Is called when a leader has answered."""
    post: Post

    def __post_init__(self) -> None:
        self.answers: dict[int, float] = {}
        """When the leader of each fence last answered a beat, while this node's lease lived on."""
        self._settings = self.asking.settings
        self._clock = self.asking.clock
        self._due = asyncio.Event()
        self._leader: LeaderRow | None = None
        self._fence = 0
        self._number = 0  # counts the beats to this leader
        self._confirmed = 0  # the last of them that was answered
        self._refused = 0  # how many in a row it has refused while this node waited
        self._token = ""  # that of the round that the grants are for
        self._granted = self._heard_until = -math.inf
        """Until when workers may run, and until when they may by what leaders answered."""
        self._warning: asyncio.TimerHandle | None = None
        self._quick = self._early = 0  # how many beats are still to follow at once, and soon
        self._estimated = "", ClockEstimator()
        """The node that led last of those that answered, and its clock."""
        self._seen = Machine("grant", "none")
        self.summary = b""
        """What this node tells the leader with each beat."""

    # ---- beats

    def follow(self, leader: LeaderRow | None, fence: int) -> None:
        """Send beats to this leader from now on."""
        if fence != self._fence:
            self._number = self._confirmed = self._refused = 0
            self._be_quick()
        self._leader, self._fence = leader, fence
        self.beat_soon()

    def _be_quick(self) -> None:
        crowd = CROWD // self._settings.max_nodes
        self._quick = max(min(MOST_QUICK, crowd), QUICK_AGAIN)
        self._early = EARLY if crowd >= MOST_QUICK else 0

    def beat_soon(self) -> None:
        """Do not wait for the interval's end: something has changed."""
        self._due.set()

    async def run(self) -> None:
        """Send a beat at every interval, until the job is over here and its workers have ended."""
        while self.member.status != "over":
            self._due.clear()
            leader, node = self._leader, self.member.row.node
            known = self.registration.lease or self.member.takes_part  # else it counts for nobody
            if leader is not None and leader.node != node and known:
                await self._beat(leader, self._fence)
            else:
                self._quick = self._early = 0
            self.extend()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._due.wait()
                await asyncio.sleep(self.asking.chance.uniform(0, self._settings.rush))

    def _pause(self) -> float:
        """Return the seconds until the next beat.

        It is soon after a refusal, as a new leader may not know this node yet.
        """
        interval = self._settings.interval
        if self._quick:
            return 0.0
        if self._early:
            return interval / 4
        if not self._refused:
            return interval
        return min(interval, FIRST_PAUSE * 2.0 ** min(self._refused, 10))

    async def _beat(self, leader: LeaderRow, fence: int) -> None:
        row = self.member.row
        inside = self.member.is_inside
        self._number += 1
        beat = Heartbeat(
            node=row.node,
            round=row.round if inside else -1,
            token=row.token if inside else "",
            number=self._number,
            confirmed=self._confirmed,
            summary=self.summary,
        )
        sent, bound = self._clock(), self._settings.interval
        reply = await self.beats.beat(leader.node, leader.endpoint, fence, beat, bound)
        answer = reply.answer
        if fence != self._fence:
            return
        if answer == "silent":
            self._quick = self._early = 0
            return
        if self._quick:
            self._quick -= 1
        elif self._early or beat.number % EVERY == 0:
            self._early, self._quick = max(self._early - 1, 0), QUICK_AGAIN
        if reply.exchange:
            self._estimate(leader.node, reply.exchange)
        self.on_answer()
        self._refused = self._refused + 1 if answer == "refused" and not inside else 0
        if self.registration.lease:
            self._note_answer(fence, beat.number)
        if answer == "granted" and inside and row.token == self._token:
            self._heard_until = max(self._heard_until, sent + GRANT * self._settings.ttl)

    def _estimate(self, leader: str, exchange: Exchange) -> None:
        if leader != self._estimated[0]:
            self._estimated = leader, ClockEstimator()
        self._estimated[1].add(exchange)

    def common_clock(self, at: float) -> CommonClock | None:
        """Return the clock of the leader that answered last, as known for this moment."""
        leader, estimator = self._estimated
        reading = estimator.at(at)
        return CommonClock(leader, reading) if reading else None

    def _note_answer(self, fence: int, number: int) -> None:
        self._confirmed = number
        self.answers.pop(fence, None)
        self.answers[fence] = self._clock()
        if len(self.answers) > ANSWERS_KEPT:
            del self.answers[next(iter(self.answers))]

    # ---- the grant

    def extend(self) -> None:
        """Find out until when workers may run here, and tell if it is longer than it was."""
        member = self.member
        if not (member.takes_part or member.status == "entering"):
            return
        if member.row.token != self._token:
            self._token, self._granted, self._heard_until = member.row.token, -math.inf, -math.inf
            self._seen.become("none", "another round", round=member.row.round)
            self._be_quick()
            self.beat_soon()
        if -math.inf < self._granted <= self._clock():  # this node stood still: too late
            self._run_out()
            return
        until = max(self.registration.until, self._heard_until)
        if self.registration.until > -math.inf:
            until = max(until, self.leads_until())
        if until > self._granted:
            self._granted = until
            self._seen.become("held", f"for {until - self._clock():.1f} s", round=member.row.round)
            self.post(Granted(until))
            self.arm()

    def arm(self) -> None:
        """Stop the workers in an orderly way shortly before the grant ends."""
        self.disarm()
        if self.member.is_inside:
            moment = self._granted - WARNING * self._settings.ttl
            delay = max(0.0, moment - self._clock())
            self._warning = asyncio.get_running_loop().call_later(delay, self._warn)

    def disarm(self) -> None:
        """Cancel the warning: no workers run any more."""
        if self._warning:
            self._warning.cancel()

    def _warn(self) -> None:
        """Extend the grant, or let it run out.

        A leader may have heard of all nodes since it last looked.
        """
        granted = self._granted
        if granted > self._clock():
            self.extend()
        if self._granted == granted:
            self._run_out()

    def _run_out(self) -> None:
        silence = self._clock() - (self._granted - GRANT * self._settings.ttl)
        self._seen.become("run out", f"{silence:.1f} s of silence", round=self.member.row.round)
        self.tell(self.member.grant_over(silence))
