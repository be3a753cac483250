"""This node's terms as the leader: how one begins and ends, and until when it may act as one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.beats import Beat, Beats
from torshrun.rendezvous.election import Election
from torshrun.rendezvous.grant import inherited_until, leader_until
from torshrun.rendezvous.lead import Lead
from torshrun.rendezvous.member import Member
from torshrun.rendezvous.registration import Registration
from torshrun.rendezvous.rows import Header
from torshrun.rendezvous.settings import GRANT
from torshrun.rendezvous.view import View

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Leadership:
    """Leads while there is a term, and answers beats."""

    def __init__(
        self,
        asking: Asking,
        member: Member,
        registration: Registration,
        election: Election,
        answers: Mapping[int, float],
        beats: Beats,
        spawn: Spawn,
    ) -> None:
        """`answers` says when the leader of each fence last answered this node. `spawn` starts a
        task that ends with the node's part in the job at the latest.
        """
        self._asking = asking
        self._member = member
        self._registration = registration
        self._election = election
        self._answers = answers
        self._beats = beats
        self._spawn = spawn
        self._lead: Lead | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """This node leads; a second time does nothing."""
        if self._lead:
            return
        now = self._asking.clock()
        view = View(self._asking.settings, self._member.row.node, now)
        view.fence = self._election.fence
        self._lead = Lead(self._asking, view, self._on_first_listing)
        revision = self._member.header_revision
        self._lead.take_header(self._member.header, revision, revision)
        self._beats.serve(self._judge)
        self._task = self._spawn(self._lead.run())

    def end(self) -> None:
        """It leads no more, or never did."""
        self._beats.serve(None)
        self._lead = None
        if self._task:
            self._task.cancel()
            self._task = None

    def take_header(self, header: Header | None, revision: int, as_of: int) -> None:
        """The round as the store had it at that revision, `as_of`."""
        if self._lead:
            self._lead.take_header(header, revision, as_of)

    def until(self) -> float:
        """Until when this node may act as the leader; -inf if it is none."""
        if not self._lead or self._registration.lease != self._election.lease:
            return -math.inf
        settings = self._asking.settings
        known_until = self._election.confirmed + GRANT * settings.ttl
        lease_until = min(self._registration.lease_until, known_until)
        return leader_until(self._lead.view, lease_until, self._asking.clock())

    def _on_first_listing(self) -> None:
        """The leader knows now who is there, and so who is missing."""
        if self._lead:
            view, last = self._lead.view, self._election.last_fence
            ends = inherited_until(view, self._answers, last, self._asking.clock())
            view.blind_until, view.inherited_until = ends

    def _judge(self, beat: Beat) -> bool:
        lead = self._lead
        if lead is None:
            return False
        was_heard = lead.view.hears(beat.node)
        is_granted = lead.view.answer_beat(beat, self._asking.clock(), self.until())
        if not was_heard:
            lead.look_again()
        return is_granted
