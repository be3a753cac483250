"""Decides what is done with a process that imports ahead, and with those forked from it.

Pure: (state, event) -> (state, instructions); no clock, no I/O. Processes are known by the number
that the keeper has for each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torshrun.workers.zygote_protocol import (
    Announced,
    Begin,
    Beginning,
    Closed,
    Complain,
    Died,
    Ended,
    Event,
    Expect,
    ExpectNothing,
    Failed,
    Fork,
    Forking,
    Import,
    Imported,
    Instruction,
    Kill,
    LetGo,
    LookForRoom,
    Owned,
    RoomSeen,
    Started,
    StartRefused,
    Taken,
    TellChange,
    Wanted,
)

IMPORT_BOUND = 120.0
"""Seconds that imports may take; a worker that imports for itself takes as long."""
FORK_BOUND = 10.0
"""Seconds that a fork may take."""
MOST_DEATHS = 3
"""Standbys that may die, with none taken meanwhile, before no more are made."""
MOST_REVIVALS = 3
"""Number of times that a process is replaced which was killed after its imports."""
TASKS = 32
"""Processes and threads that there must be room for, for each standby: workers start some."""

Phase = Literal["importing", "forks", "catching up", "separate", "gone"]
"""catching up: it imports what workers have since, and forks again afterwards; separate: it cannot
be forked, and so is a standby itself, until it is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A zygote and its standbys."""

    phase: Phase = "gone"
    wanted: int = 0
    """Number of standbys to be provided."""
    room: int = 0
    """Bytes of memory that must be left for each that is forked."""
    process: int | None = None
    """The one that imports; None if there is none, or if it has become a worker."""
    forking: tuple[int, ...] = ()
    """Standbys that are on their way."""
    standbys: tuple[int, ...] = ()
    """Standbys that can be taken, the newest last."""
    outdated: int = 0
    """Number of the oldest standbys that lack imports."""
    modules: tuple[str, ...] = ()
    """Modules that were requested and have been imported."""
    caught_up: tuple[str, int] = ("", 0)
    """File of a worker's imports with which it has caught up, and the file's size."""
    may_catch_up: bool = True
    is_apart: bool = False
    """True if it cannot be forked."""
    weight: int = 0
    """Bytes of memory that it has, if it cannot be forked."""
    is_short: bool = False
    """True if memory was short when it was last checked."""
    deaths: int = 0
    revivals: int = 0

    @property
    def missing(self) -> int:
        """Return how many standbys are still to be made."""
        return self.wanted - len(self.standbys) + self.outdated - len(self.forking)

    @property
    def expects(self) -> bool:
        """Return whether there is a standby, or one is to come."""
        is_to_come = self.phase in ("importing", "forks") and not self.is_apart
        return bool(self.standbys) or is_to_come

    @property
    def processes(self) -> tuple[int, ...]:
        own = () if self.process is None else (self.process,)
        return tuple(dict.fromkeys((*own, *self.forking, *self.standbys)))


Step = tuple[State, tuple[Instruction, ...]]
_IMPORTS = Expect(IMPORT_BOUND, "imports take")
_A_FORK = Expect(FORK_BOUND, "a fork takes")


def handle(state: State, event: Event) -> Step:
    """Return the state after the event, and the instructions to carry out."""
    match event:
        case Beginning() | Started() | StartRefused():
            return _on_start(state, event)
        case Announced():
            return _on_announcement(state, event)
        case Ended(how):
            return _on_end(state, how)
        case Wanted(standbys, room):
            return replace(state, wanted=standbys, room=room), (LookForRoom(),)
        case RoomSeen():
            return _fill(state, event)
        case Imported(recorded, size):
            return _catch_up(state, (recorded, size))
        case Failed(why):
            return _fail(state, why)
        case Closed():
            letting_go = tuple(map(LetGo, state.processes))
            closed = replace(state, phase="gone", process=None, forking=(), standbys=())
            return closed, (ExpectNothing(), *letting_go)
        case _:
            return _on_standby(state, event)


def _on_start(state: State, event: Beginning | Started | StartRefused) -> Step:
    match event:
        case Beginning(wanted):
            begun = replace(state, phase="gone", wanted=wanted, caught_up=("", 0), process=None)
            return begun, ()
        case Started(process):
            return replace(state, phase="importing", process=process), (_IMPORTS,)
        case StartRefused(why):
            return state, (Complain(f"workers import for themselves: {why}"), TellChange())


def _on_standby(state: State, event: Forking | Owned | Died | Taken) -> Step:
    match event:
        case Forking(standby):
            return replace(state, forking=(*state.forking, standby)), (_A_FORK,)
        case Owned(standby):
            return _on_owned(state, standby)
        case Died(standby):
            return _on_death(state, standby)
        case Taken(is_usable):
            return _on_taken(state, is_usable)


# ---- the process that imports


def _on_announcement(state: State, event: Announced) -> Step:
    if state.phase not in ("importing", "catching up"):
        return state, ()
    said: tuple[Instruction, ...] = (
        ExpectNothing(),
        *(
            Complain(f"{name} cannot be imported ahead: {why}")
            for name, why in event.failed.items()
        ),
    )
    if event.reads:
        name, variable = next(iter(event.reads.items()))
        state, more = _fail(state, f"{name} reads {variable} when it is imported")
    elif event.why_not_fork and state.phase == "importing":
        state, more = _be_separate(state, event)
    elif event.why_not_fork:
        state, more = _fail(state, event.why_not_fork)
    else:
        state, more = _be_forked(state, event.modules)
    return state, (*said, *more)


def _be_forked(state: State, modules: tuple[str, ...]) -> Step:
    has_more = state.phase == "catching up" and len(modules) > len(state.modules)
    outdated = len(state.standbys) if has_more else state.outdated
    state = replace(state, modules=modules, phase="forks", is_apart=False, outdated=outdated)
    return state, (LookForRoom(),)


def _be_separate(state: State, event: Announced) -> Step:
    why = f"no process can be forked from the one that imports ahead, since {event.why_not_fork}"
    complaint = () if state.is_apart else (Complain(why),)
    assert state.process is not None, "it has just said something"
    standbys = (*state.standbys, state.process)
    state = replace(state, phase="separate", is_apart=True, weight=event.weight, standbys=standbys)
    return state, (*complaint, TellChange())


def _on_end(state: State, how: str) -> Step:
    state = replace(state, standbys=_without(state.standbys, state.process))
    if state.phase in ("forks", "separate") and state.revivals < MOST_REVIVALS:
        return _begin_anew(replace(state, revivals=state.revivals + 1))
    return _fail(state, f"the process that does has ended ({how})")


def _begin_anew(state: State) -> Step:
    """Begin anew with another process; existing standbys remain."""
    state, letting_go = _let_go(state)
    return state, (*letting_go, Begin())


def _fail(state: State, why: str) -> Step:
    if state.phase == "gone":
        return state, ()
    if state.phase == "catching up":  # what it was told at first can be had still
        state, begun = _begin_anew(replace(state, may_catch_up=False))
        what = "what workers have imported since is not imported ahead"
        return state, (Complain(f"{what}: {why}"), *begun)
    state, letting_go = _let_go(replace(state, phase="gone"))
    return state, (Complain(f"workers import for themselves: {why}"), *letting_go, TellChange())


def _let_go(state: State) -> Step:
    """Kill the zygote, and those that it has not quite forked."""
    killed = [each for each in state.processes if each not in state.standbys]
    process = None if state.process in killed else state.process
    killing = tuple(map(Kill, killed))
    return replace(state, process=process, forking=()), (ExpectNothing(), *killing)


def _catch_up(state: State, seen: tuple[str, int]) -> Step:
    is_able = state.may_catch_up and state.phase == "forks" and not state.forking
    if state.process is None or not is_able or state.caught_up == seen:
        return state, ()
    return replace(state, phase="catching up", caught_up=seen), (_IMPORTS, Import(seen[0]))


# ---- its standbys


def _fill(state: State, seen: RoomSeen) -> Step:
    """Begin to make the missing standbys; at most one if none can be forked."""
    missing = state.missing
    if missing <= 0:
        return state, ()
    if state.phase == "separate" and state.process is None:
        state, complaint = _look(state, 1, seen.memory)
        return (state, complaint) if state.is_short else _begin_anew(state)
    if state.phase != "forks":
        return state, ()
    state, complaint = _look(state, missing, seen.memory)
    if state.is_short:
        return state, complaint
    if state.room and (why := why_no_tasks(missing, seen.tasks)):  # it takes room itself
        return _fail(state, why)
    return state, (Fork(),) * missing


def _look(state: State, missing: int, memory: int) -> Step:
    """Note whether `missing` more leave enough memory to others; if not, want no more of them."""
    room = state.room and max(state.room, state.weight)
    if memory >= missing * room:
        return replace(state, is_short=False), ()
    why = f"there is no memory left for {missing} more standbys"
    complaint = () if state.is_short else (Complain(why),)
    return replace(state, is_short=True, wanted=len(state.standbys)), complaint


def why_no_tasks(standbys: int, tasks: float) -> str:
    """Return why there is no room for so many standbys; "" if there is."""
    is_enough = tasks >= standbys * TASKS
    return "" if is_enough else f"only {tasks} more processes and threads may be started"


def _on_owned(state: State, standby: int) -> Step:
    if standby not in state.forking:
        return state, ()
    state = replace(state, forking=_without(state.forking, standby))
    expected = _expected_forks(state)
    standbys = (*state.standbys, standby)
    if not state.outdated:
        return replace(state, standbys=standbys), (*expected, TellChange())
    oldest, *rest = standbys
    state = replace(state, standbys=tuple(rest), outdated=state.outdated - 1)
    return state, (*expected, Kill(oldest), TellChange())


def _on_death(state: State, standby: int) -> Step:
    was_there = standby in state.standbys
    if was_there:
        is_outdated = state.standbys.index(standby) < state.outdated
        state = replace(state, outdated=state.outdated - is_outdated)
    state = replace(
        state,
        standbys=_without(state.standbys, standby),
        forking=_without(state.forking, standby),
        deaths=state.deaths + 1,
    )
    letting_go = (LetGo(standby), *_expected_forks(state))
    if state.deaths >= MOST_DEATHS + state.wanted:
        state, more = _fail(state, "standbys die as soon as they are forked")
        return state, (*letting_go, *more)
    # A sweep may have met one that was on its way to the keeper, and would meet the next, too.
    return state, (*letting_go, LookForRoom() if was_there else TellChange())


def _expected_forks(state: State) -> tuple[Instruction, ...]:
    """Return when to expect the next fork, if any: it has its own time."""
    if state.forking:
        return (_A_FORK,)
    return (ExpectNothing(),) if state.phase == "forks" else ()


def _on_taken(state: State, is_usable: bool) -> Step:
    """Hand over the newest standby, which has imported most."""
    *rest, standby = state.standbys
    state = replace(state, standbys=tuple(rest), outdated=min(state.outdated, len(rest)))
    if not is_usable:
        return state, (Kill(standby),)
    process = None if standby == state.process else state.process
    return replace(state, deaths=0, process=process), (LetGo(standby),)


def _without(numbers: tuple[int, ...], number: int | None) -> tuple[int, ...]:
    return tuple(each for each in numbers if each != number)
