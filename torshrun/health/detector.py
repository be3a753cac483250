"""Decides whether a node's workers hang, from what is seen of them. Pure: no clock, no I/O.

Three things are a hang, each if it holds for the whole timeout:

- a worker is in one collective, and meets nobody there;
- a worker waits for one thing of another, such as a step of a pipeline's stage;
- no worker of the node writes anything, notes anything or uses CPU.

So computing for long, waiting for a rank of one's own node that computes, and having ended are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from torshrun.health.pages import Awaited, Collective, WorkerStatus

Place = Literal["here", "elsewhere", "unknown"]
"""Node of the rank that the others wait for; unknown if nobody says that it waits."""
IDLE = 0.01
"""A worker that uses less than this share of one CPU is idle."""
_GRAIN = 0.02  # seconds of CPU that do not count yet: the kernel tells of them in hundredths


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Describes one worker at one moment."""

    rank: int
    status: WorkerStatus = field(default_factory=WorkerStatus)
    output: int = 0
    """Bytes that it has written so far."""
    cpu: float = 0.0
    """Seconds of CPU that it and its descendants have used so far."""
    alive: bool = True
    state: str = ""
    """The state of its process as in /proc/<pid>/stat; "" is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """Describes one worker when it was last looked at."""

    sample: Sample
    """The sample that was taken of it then."""
    waits_in: Collective | None
    """The collective that it is in; None if it is in none."""
    seconds: float
    """Seconds since it came there without meeting anybody, or else in which it did nothing."""
    awaits: Awaited | None = None
    """The thing that it waits for of another rank, if it is in no collective."""
    since: Mapping[Collective | Awaited, float] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """The time when each group's operation, and what it awaits, was first seen as it still is."""
    idle_since: float = 0.0
    """The time when it was last seen doing anything."""
    idle_cpu: float = 0.0
    """The seconds of CPU that it had used at `idle_since`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Workers that make no progress."""

    seconds: float
    """For how long that has been seen: the timeout, or a little more."""
    ranks: tuple[RankState, ...]
    """The node's workers, in the order of their ranks."""
    suspect: int
    """The rank that the others wait for; the lowest one if that cannot be told."""


class HangDetector:
    """Watches the workers of one round."""

    def __init__(self, timeout: float, patience: float) -> None:
        """Watch for `timeout` seconds without progress, which are a hang.

        After `patience` seconds between two observations, what was seen before counts no more:
        somebody stopped the observer, and perhaps the workers.
        """
        self._timeout = timeout
        self._patience = patience
        self._last = 0.0
        self._seen: dict[int, RankState] = {}

    def observe(self, now: float, samples: Sequence[Sample]) -> Hang | None:
        """Take in the state of all workers at `now` (seconds, monotonic); return a hang, if any."""
        seen = self._seen if now - self._last <= self._patience else {}
        ordered = sorted(samples, key=lambda sample: sample.rank)
        self._seen = {each.rank: _state(seen.get(each.rank), each, now) for each in ordered}
        self._last = now
        states = tuple(self._seen.values())
        seconds = max((each.seconds for each in states if is_waiting(each)), default=0.0)
        if seconds < self._timeout and any(each.sample.alive for each in states):
            seconds = min(now - each.idle_since for each in states)
        if seconds < self._timeout:
            return None
        return Hang(seconds=seconds, ranks=states, suspect=_suspect(states))


def _state(seen: RankState | None, sample: Sample, now: float) -> RankState:
    before = seen.since if seen else {}
    awaited = sample.status.awaited
    noted: list[Collective | Awaited] = [*sample.status.collectives]
    since = {each: before.get(each, now) for each in [*noted, *([awaited] if awaited else [])]}
    idle_since, idle_cpu = now, sample.cpu
    if seen and _is_idle(seen, sample, now):
        idle_since, idle_cpu = seen.idle_since, seen.idle_cpu
    active = [each for each in sample.status.collectives if each.active and sample.alive]
    longest = min(active, key=lambda each: since[each], default=None)
    awaits = awaited if sample.alive and longest is None else None
    waited_for = longest or awaits
    return RankState(
        sample=sample,
        waits_in=longest,
        seconds=now - (since[waited_for] if waited_for else idle_since),
        awaits=awaits,
        since=since,
        idle_since=idle_since,
        idle_cpu=idle_cpu,
    )


def _is_idle(seen: RankState, sample: Sample, now: float) -> bool:
    last = seen.sample
    same_output = (last.alive, last.output) == (sample.alive, sample.output)
    allowed = IDLE * (now - seen.idle_since) + _GRAIN
    # A sum that falls is that of fewer processes: one has ended, which is activity.
    return (
        same_output and last.status == sample.status and 0 <= sample.cpu - seen.idle_cpu < allowed
    )


def _suspect(states: Sequence[RankState]) -> int:
    """Return the rank that the others wait for. Of those that wait for one another it is the last,
    which waits for none, unless they wait in a circle.
    """
    first = rank = _first_suspect(states)
    by_rank = {state.sample.rank: state for state in states}
    followed = {rank}
    while rank in by_rank:
        after = _awaited_by(by_rank[rank], states)
        if after == rank:
            break
        if after in followed:
            return first
        followed.add(after)
        rank = after
    return rank


def _awaited_by(state: RankState, states: Sequence[RankState]) -> int:
    """Return whom a rank waits for; the rank itself if it waits for nobody that is known."""
    if state.waits_in and _lacks_somebody(state, states):
        return _late_in(state.waits_in, states)
    if state.waits_in:
        return state.sample.rank
    return state.awaits.rank if state.awaits else state.sample.rank


def _lacks_somebody(state: RankState, states: Sequence[RankState]) -> bool:
    """Return whether a rank is known not to have come to what this one waits in."""
    waited = state.waits_in
    if waited is None:
        return False
    having = [each for each in states if find(each.sample.status, waited.group)]
    own = _progress(state, waited.group)
    return len(having) >= waited.ranks and any(_progress(s, waited.group) < own for s in having)


def _first_suspect(states: Sequence[RankState]) -> int:
    """Return the rank for which the one waits that has waited for longest."""
    group = waited_group(states)
    awaiting = [state for state in states if state.awaits]
    if group is not None:
        return _late_in(group, states)
    if awaiting:
        longest = max(awaiting, key=lambda state: state.seconds)
        return _awaited_by(longest, states)
    return _idle(states)


def _idle(states: Sequence[RankState]) -> int:
    """Choose among ranks that do nothing."""
    return min(
        states,
        key=lambda each: (not each.sample.alive, not is_stopped(each), each.sample.rank),
    ).sample.rank


def _late_in(group: Collective, states: Sequence[RankState]) -> int:
    """Return the rank to suspect in a group, which is not one in its furthest operation.

    Of the rest it is one that is stopped, else the one that is furthest behind.
    """
    having = [state for state in states if find(state.sample.status, group.group)]
    members = having if len(having) >= group.ranks else states  # some have yet to make the group
    progress = {state.sample.rank: _progress(state, group.group) for state in members}
    furthest = max(progress.values())
    behind = [state for state in members if progress[state.sample.rank] < furthest]

    def order(state: RankState) -> tuple[bool, tuple[int, int], int]:
        return not is_stopped(state), progress[state.sample.rank], state.sample.rank

    return min(behind or members, key=order).sample.rank


def place_of_suspect(hang: Hang) -> Place:
    """Return where the rank is that the others wait for, as far as this node's workers show it."""
    suspects = [state for state in hang.ranks if state.sample.rank == hang.suspect]
    if not suspects:
        return "elsewhere"
    waited = waited_group(hang.ranks)
    if is_stopped(suspects[0]) or (waited is None and any(map(is_waiting, hang.ranks))):
        return "here"
    if waited is None:
        return "unknown"
    here = [find(state.sample.status, waited.group) for state in hang.ranks]
    return "elsewhere" if {*here} == {waited} and len(here) < waited.ranks else "here"


def is_waiting(state: RankState) -> bool:
    """Return whether it waits for others, and says so."""
    return bool(state.waits_in or state.awaits)


def waited_group(states: Sequence[RankState]) -> Collective | None:
    """Return the collective of the rank that has waited for longest; None if none waits."""
    waiting = [state for state in states if state.waits_in]
    return max(waiting, key=lambda state: state.seconds).waits_in if waiting else None


def _progress(state: RankState, group: int) -> tuple[int, int]:
    """Return how far a rank has come in a group: operations entered, rounds met."""
    found = find(state.sample.status, group)
    return (found.sequence, found.rounds) if found else (-1, -1)


def find(status: WorkerStatus, group: int) -> Collective | None:
    """Return the last operation of a worker's group; None if it has no such group."""
    return next((each for each in status.collectives if each.group == group), None)


def is_stopped(state: RankState) -> bool:
    """Return whether its process was stopped by a signal or a debugger."""
    return state.sample.state in ("T", "t")
