"""Decides this node's part in the rounds. Pure: no clock and no I/O.

Each method takes what has happened, changes the row that this node wants in the store, and returns
the events for its agent.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any, Literal, cast

from torshrun import exit_codes
from torshrun.rendezvous import base
from torshrun.rendezvous.rows import Header, LeaderRow, NodeRow, NodeState, PlaceRow, VerdictRow
from torshrun.rendezvous.settings import NodeFacts, Settings

Events = tuple[base.RendezvousEvent, ...]
Status = Literal["waiting", "entering", "inside", "moving", "stopping", "reported", "over"]
"""inside: workers run, or may. moving: they have left a round, and this node is entering the next
one with them. stopping: the agent was told to stop them, and is to report."""

_LOST_EPOCH = "what the store held of this job is gone, so its nodes meet anew"
_OF_ITSELF = ("node", "host", "address", "endpoint", "nproc", "role", "fixed_rank")
_OF_ITS_SETTINGS = ("ttl", "outage_timeout", "max_restarts")
_RANKS = ("node_rank", "first_rank")
_OF_ITS_ROUND = ("round", "token", "round_size", "round_leader", "restarts", *_RANKS)
_OF_ITS_REPORT = (
    *("outcome", "code", "signo", "startup", "seconds", "cause", "follows"),
    "testimony",
)
"""Fields of a row that come from its node's facts, from the round it was in, and from its
report.
"""
# What a place has from the round's header: of node rank 0, and of the round.
_OF_NODE_0 = ("master_addr", "master_port", "jax_port", "store_node", "store_endpoint")
_FOR_WORKERS = ("restarts", "world_size", "since", "kept", *_OF_NODE_0)
_FOR_PEOPLE = ("finding", "departed")


def _fields(source: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _of_round(header: Header) -> dict[str, Any]:
    """Return what a node's row says of this round, except its ranks."""
    return {
        "round": header.number,
        "token": header.token,
        "round_size": header.size,
        "round_leader": header.leader,
        "restarts": header.restarts,
    }


class Member:
    """A node on its way through the rounds."""

    def __init__(self, settings: Settings, facts: NodeFacts, past: NodeRow | None = None) -> None:
        """Begin without a round.

        `past` is the row in the epoch before, of whose round nothing runs any more.
        """
        self._settings = settings
        self._facts = facts
        self.status: Status = "waiting"
        self.over = False
        """Whether the agent was told how the job ended. Its workers may still run, and end."""
        self.header: Header | None = None
        self.header_revision = 0
        self.place: PlaceRow | None = None
        self.dropped = False
        """Whether its grant ran out in the last round it was in."""
        self._told = self._job_waits = ""
        self._is_storeless = False
        self._answered = ""
        """Token of the last round that missed this node, which has shown since that it can read."""
        self._closed = ""  # token of the last round that its agent was told is closing
        self._entered = 0  # the number of the round when this node entered it
        self._left_round = -1  # the last round that its workers were told to leave
        self._is_hasty = False  # whether they were told to do so at once
        self._standbys = 0
        self._versions = count(past.sequence + 1 if past else 1)
        self.row = self._fresh_row(**_fields(past, _OF_ITS_ROUND) if past else {})
        """What is to stand in the store. "inside" may be written only if the header still stands
        at `header_revision`, and before the agent is told."""

    @property
    def wants_place(self) -> bool:
        """Return whether there is a round whose place row may be this node's."""
        header = self.header
        if header is None or self.row.leaving or not (self._rests or self._may_move):
            return False
        known = self.row.token, self.place and self.place.token
        return self._is_missed or (header.phase == "open" and header.token not in known)

    @property
    def _is_missed(self) -> bool:
        header = self.header
        if header is None or header.token == self._answered:
            return False
        return self.row.node in header.missed

    @property
    def past(self) -> NodeRow:
        """Return the node's row, with what it knows of the last round, even without a place
        there.
        """
        header = self.header
        if header is None or header.number <= self.row.round:
            return self.row
        return replace(self.row, **_of_round(header), node_rank=-1, first_rank=-1)

    @property
    def takes_part(self) -> bool:
        """Return whether workers may run here."""
        return self.is_inside or self.status == "stopping"

    @property
    def is_inside(self) -> bool:
        """Return whether workers may run here that nobody was told to stop."""
        return self.status in ("inside", "moving")

    @property
    def is_entering(self) -> bool:
        """Return whether this node enters a round once its row is written."""
        return self.status in ("entering", "moving")

    @property
    def _may_move(self) -> bool:
        """Return whether this node's workers may have a place in the next round.

        They have left the one before, and others than its nodes are in the next.
        """
        header, row = self.header, self.row
        if header is None or not header.kept or header.phase != "open":
            return False
        have_left = self.status == "inside" and row.standing in ("parked", "bare")
        return have_left and not row.leaving and header.number == row.round + 1

    @property
    def _rests(self) -> bool:
        return self.status in ("waiting", "reported")

    def _fresh_row(self, state: NodeState = "waiting", **changes: Any) -> NodeRow:
        changes |= _fields(self._facts, _OF_ITSELF) | self._ports()
        changes |= _fields(self._settings, _OF_ITS_SETTINGS)
        changes.setdefault("standbys", self._standbys)
        return NodeRow(state=state, sequence=next(self._versions), **changes)

    def _ports(self) -> dict[str, Any]:
        return dict(zip(("master_port", "jax_port"), self._facts.ports(), strict=True))

    def _change_row(self, **changes: Any) -> None:
        self.row = replace(self.row, sequence=next(self._versions), **changes)

    def _wait(self, told: tuple[str, ...] = ("round",)) -> None:
        """Ask for a place as a node that has none, and tell this of the round that it was in."""
        self.status = "waiting"
        self.row = self._fresh_row(**_fields(self.row, told))

    # ---- what others wrote

    def take_header(self, header: Header | None, revision: int) -> Events:
        """Handle the round's header in its present form."""
        self.header, self.header_revision = header, revision
        if self.over:
            return ()
        if header is not None and self._facts.node in header.drained:
            self.leave("preempted", exit_codes.PREEMPTED, "drained")
        return self._follow_header()

    def _follow_header(self) -> Events:
        header = self.header
        ours = header is not None and header.token == self.row.token
        if self.over:
            return ()
        if self.takes_part or (ours and self.status == "reported"):
            return self._follow_own(header if ours else None)
        if self.status == "entering" and not (ours and header and header.phase == "open"):
            self._wait()
        if self.status == "reported":
            self.status = "waiting"
        may_hear_more = self.wants_place and not self._is_storeless  # from its place row
        if self.status != "waiting" or may_hear_more:
            return ()
        return self._stand_by(self._why(header))

    def _follow_own(self, header: Header | None) -> Events:
        """Handle that its own round continues, or is closing, or (None) has been replaced."""
        if header and header.phase == "open":
            return self._follow_mending(header)
        if header is None and self._may_move:
            return ()  # until it has read its place
        if header is None:
            return self._close("the others went on without this node")
        charged = header.failed and header.restarts < header.max_restarts
        return self._close(header.reason, header.failed, header.restarts + charged, header.delay)

    def _follow_mending(self, header: Header) -> Events:
        """Handle that workers of its round were lost, or were replaced while the others stay."""
        events: Events = ()
        if self.status != "inside":
            return events
        if header.number > self.row.round:
            self._change_row(**_of_round(header), standing="", lost=False)
            events = (base.RoundMended(self._assignment(header)),)
        number, is_hasty = header.number, not header.at_commit
        if header.mending and (self._left_round, self._is_hasty) < (number, is_hasty):
            self._left_round, self._is_hasty = number, is_hasty
            events = (*events, base.RoundOver(number, header.reason, header.at_commit))
        return events

    def _close(
        self, reason: str, failed: bool = False, restarts: int = 0, delay: float = 0.0
    ) -> Events:
        if self._closed == self.row.token:
            return ()
        self._closed = self.row.token
        if self.is_inside:
            self.status = "stopping"
        closing = base.RoundClosing(
            round=self.row.round, reason=reason, failed=failed, restarts=restarts, delay=delay
        )
        return (closing,)

    def _why(self, header: Header | None) -> str:
        """Return why a node without a place has none."""
        if self._is_storeless:
            most = self._settings.join_timeout
            return f"waiting for the store, which does not answer; this node ends after {most:g} s"
        if self._job_waits:
            return self._job_waits
        least, most = self._settings.min_nodes, self._settings.max_nodes
        if header is None:
            count = f"{least}" if least == most else f"{least} to {most}"
            return f"waiting for the job's nodes ({count})"
        if header.phase == "closing":
            return f"round {header.number} is ending ({header.reason}); the next one is to come"
        if header.token == self.row.token:
            return f"round {header.number} is over for this node; the next one is to come"
        if header.size >= header.max_nodes:
            most = header.max_nodes
            return (
                f"the job has its maximum of {most} node(s); this one waits in case one is lost. "
                f"If it is to run another job, that needs a --rdzv-id of its own"
            )
        return f"round {header.number} runs on {header.size} node(s), which will let this one in"

    def take_place(self, token: str, place: PlaceRow | None) -> Events:
        """Handle the place row that was read when the round with this token was open."""
        if not self.header or self.header.token != token or not self.wants_place:
            return ()
        if self._is_missed:
            self._answered = token
            self._change_row()
            return ()
        if place is None or place.token != token:
            place = PlaceRow(round=self.header.number, token=token)
        if self.status == "inside":
            return self._move(self.header, place)
        self.place = place
        if place.node_rank < 0:
            return self._stand_by(place.why or self._why(self.header))
        self.status = "entering"
        ranks, kept = _fields(place, _RANKS), self.header.kept
        ranks["lasting"] = "any" if kept else ""
        self.row = self._fresh_row("inside", **_of_round(self.header), **ranks)
        return ()

    def _move(self, header: Header, place: PlaceRow) -> Events:
        """Take the place of this node's workers, which keep their processes, in another round."""
        if not place.stays or place.node_rank < 0:
            return self._close(place.why or "the others went on without this node")
        self.place, self.status = place, "moving"
        lasting = self.row.lasting or "any"
        entered = {**_of_round(header), **_fields(place, _RANKS), "lasting": lasting}
        self._change_row(**entered, standing="", lost=False)
        return ()

    def entered(self) -> Events:
        """Handle that the row "inside" has been written while the round was open."""
        header, moves = self.header, self.status == "moving"
        if not self.is_entering or header is None or self.place is None:
            return ()
        self.status, self.dropped, self._told = "inside", False, ""
        if moves:
            return (base.RoundMended(self._assignment(header)), *self._follow_header())
        self._entered, self._left_round = header.number, -1
        return (base.RoundFormed(self._assignment(header)), *self._follow_header())

    def _assignment(self, header: Header) -> base.NodeAssignment:
        return base.NodeAssignment(
            round=header.number,
            num_nodes=header.size,
            **_fields(header, (*_FOR_WORKERS, *_FOR_PEOPLE)),
            **_fields(self.place, (*_RANKS, "role_first_rank", "role_world_size")),
        )

    def take_verdict(self, verdict: VerdictRow) -> Events:
        """Handle the verdict on the job."""
        return self._end(verdict)

    def take_wait(self, why: str) -> Events:
        """Note what the leader waits for; "" if nothing."""
        self._job_waits = f"the job waits {why}" if why else ""
        has_left = self.status == "inside" and self._left_round == self.row.round
        return self._stand_by(self._job_waits) if why and (self._rests or has_left) else ()

    def take_silence(self, is_storeless: bool) -> Events:
        """Note whether the store has not answered for some time."""
        if is_storeless == self._is_storeless:
            return ()
        self._is_storeless = is_storeless
        return self._follow_header()

    def doubt(self, leader: LeaderRow | None, seconds: float) -> Events:
        """Report that nobody of this run id has answered yet.

        This node waits for `seconds` at most.
        """
        what = "a node to lead the job; what the store holds may be another's"
        then = "a new one is begun"
        if leader:
            what, then = f"{leader.node}, which leads, to answer", "this node ends"
        return self._stand_by(f"waiting for {what}, and {then} after {seconds:.0f} s")

    def lose_epoch(self) -> Events:
        """Handle that the store has lost the epoch: only its nodes know of the round any more."""
        if not self.takes_part:
            return self._stand_by(f"{_LOST_EPOCH}; looking for the others")
        return self._close(_LOST_EPOCH)

    # ---- what happened here

    def report(self, report: base.Report) -> Events:
        """Handle that the workers of a round have ended."""
        if not self.takes_part or not self._entered <= report.round <= self.row.round:
            return ()
        if self.over:
            self.status = "over"
            return ()
        if report.outcome == "noticed":
            self.leave("preempted", exit_codes.PREEMPTED, "noticed that it is to go")
        elif report.outcome == "lost":
            code = report.code if report.code == exit_codes.GPU_BROKEN else exit_codes.LOST
            self.leave("lost", code, report.cause or "no workers can run here")
        unexpected = report.outcome == "stopped" and self.is_inside
        self.status = "reported"
        told = _fields(report, _OF_ITS_REPORT)
        if self.row.leaving:
            self._change_row(state="left", **told)
        else:
            self._change_row(state="reported", **told, **self._ports())
        alone = self.header is None or self.header.token != self.row.token
        if not self.row.leaving and (self.dropped or alone or unexpected):
            self._wait(_OF_ITS_ROUND)  # so others know that nothing of it runs here any more
        return self._follow_header()

    def mend(self, number: int, standing: base.Standing, seconds: float, lost: bool) -> Events:
        """Handle how this node stands in a round that its workers are to leave."""
        if self.status == "inside" and number == self.row.round:
            self._change_row(standing=standing, seconds=seconds, lost=lost)
        return ()

    def note_lasting(self, lasting: base.Lasting) -> Events:
        """Note whether the workers here can keep their processes when nodes leave or come."""
        if self.is_inside and self.row.lasting != lasting:
            self._change_row(lasting=lasting)
        return ()

    def grant_over(self, seconds: float) -> Events:
        """Handle that neither the store nor the leader has granted anything for `seconds`."""
        if not self.is_inside:
            return ()
        self.dropped = True
        return self._close(
            f"this node could reach neither the store nor the leader for {seconds:.1f} s"
        )

    def hold_growth(self, is_held: bool) -> Events:
        """Note whether the workers here want no node to be added."""
        if self.takes_part and self.row.holds != is_held:
            self._change_row(holds=is_held)
        return ()

    def note_standbys(self, count: int) -> None:
        """Note how many processes wait here to become workers."""
        self._standbys = count
        if self.row.standbys != count and not self.over:
            self._change_row(standbys=count)

    def leave(self, outcome: str, code: int, reason: str) -> Events:
        """Let this node leave. It is over when its row "left" has been written, see `left`."""
        if self.row.leaving or self.over:
            return ()
        if self.status == "entering":
            self._wait()
        state = "left" if self._rests else self.row.state
        self._change_row(state=state, leaving=outcome, leaving_code=code, leaving_reason=reason)
        return ()

    def left(self) -> Events:
        """End: the row that says "left" has been written, or could not be in time."""
        if self.row.state != "left":
            return ()
        row, outcome = self.row, cast(base.Outcome, self.row.leaving)
        return self._end(
            base.Verdict(outcome=outcome, code=row.leaving_code, reason=row.leaving_reason)
        )

    def give_up(self, reason: str) -> Events:
        """End because the store cannot be found."""
        return self._end(base.Verdict(outcome="lost", code=exit_codes.RENDEZVOUS, reason=reason))

    def _end(self, verdict: base.Verdict) -> Events:
        if self.over:
            return ()
        self.over, self.status = True, "stopping" if self.takes_part else "over"
        return (base.JobOver(verdict),)

    def _stand_by(self, why: str) -> Events:
        if why == self._told or self.over or self.row.leaving:
            return ()
        self._told = why
        return (base.StandingBy(why),)
