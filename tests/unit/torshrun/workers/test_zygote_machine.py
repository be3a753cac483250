"""What becomes of a process that imports ahead, and of its standbys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from torshrun.workers import zygote_machine as machine
from torshrun.workers import zygote_protocol as protocol
from torshrun.workers.zygote_machine import State, handle
from torshrun.workers.zygote_protocol import (
    Announced,
    Begin,
    Complain,
    Died,
    Ended,
    Expect,
    ExpectNothing,
    Failed,
    Fork,
    Forking,
    Import,
    Imported,
    Kill,
    LetGo,
    LookForRoom,
    Owned,
    RoomSeen,
    Taken,
    TellChange,
    Wanted,
)

PLENTY = RoomSeen(memory=1 << 40, tasks=1 << 20)
FORKS = State(phase="forks", wanted=2, process=1)


def announced(*modules: str, **changes: Any) -> Announced:
    facts: dict[str, Any] = {"modules": modules, "failed": {}, "reads": {}}
    return Announced(**(facts | changes))


def fed(state: State, *events: protocol.Event) -> State:
    for event in events:
        state, _ = handle(state, event)
    return state


def complaints(instructions: tuple[protocol.Instruction, ...]) -> list[str]:
    return [each.why for each in instructions if isinstance(each, Complain)]


def test_it_imports_and_then_forks_as_many_as_are_wanted() -> None:
    state = fed(State(), protocol.Beginning(2), protocol.Started(1))
    assert (state.phase, state.expects, state.wanted) == ("importing", True, 2)
    state, instructions = handle(state, announced("numpy"))
    assert instructions == (ExpectNothing(), LookForRoom())
    assert (state.phase, state.modules) == ("forks", ("numpy",))
    assert handle(state, PLENTY) == (state, (Fork(), Fork()))
    state = fed(state, Forking(2), Forking(3), Owned(2))
    assert (state.standbys, state.forking, state.missing) == ((2,), (3,), 0)
    state, instructions = handle(state, Owned(3))
    assert instructions == (ExpectNothing(), TellChange())
    assert handle(state, PLENTY) == (state, ())


def test_each_fork_has_a_time_of_its_own() -> None:
    state, instructions = handle(FORKS, Forking(2))
    fork = Expect(machine.FORK_BOUND, "a fork takes")
    assert instructions == (fork,)
    _, instructions = handle(fed(state, Forking(3)), Owned(2))
    assert instructions == (fork, TellChange())


def test_the_newest_standby_is_taken_first_and_one_that_does_not_hear_is_killed() -> None:
    state = replace(FORKS, standbys=(2, 3, 4), outdated=3, deaths=2)
    state, instructions = handle(state, Taken(is_usable=False))
    assert (instructions, state.standbys, state.deaths) == ((Kill(4),), (2, 3), 2)
    state, instructions = handle(state, Taken(is_usable=True))
    assert instructions == (LetGo(3),)
    assert (state.standbys, state.outdated, state.deaths) == ((2,), 1, 0)


def test_standbys_that_lack_imports_go_as_soon_as_newer_ones_are_there() -> None:
    state = replace(FORKS, standbys=(2, 3), modules=("numpy",))
    state, instructions = handle(state, Imported("file", 9))
    assert instructions == (Expect(machine.IMPORT_BOUND, "imports take"), Import("file"))
    state = fed(state, announced("numpy", "torch"))
    assert (state.outdated, state.missing) == (2, 2)
    state, instructions = handle(fed(state, Forking(4)), Owned(4))
    assert (state.standbys, state.outdated) == ((3, 4), 1)
    assert Kill(2) in instructions
    assert fed(state, Imported("file", 9)).phase == "forks", "it has imported that already"


@pytest.mark.parametrize(
    "state", [replace(FORKS, may_catch_up=False), replace(FORKS, forking=(2,)), State()]
)
def test_it_catches_up_only_when_it_has_nothing_else_to_do(state: State) -> None:
    assert handle(state, Imported("file", 9)) == (state, ())


def test_what_fails_to_catch_up_begins_anew_and_does_not_try_again() -> None:
    state = replace(FORKS, phase="catching up", standbys=(2,))
    state, instructions = handle(state, Failed("it hangs"))
    assert (state.may_catch_up, state.standbys) == (False, (2,))
    assert (Kill(1) in instructions, instructions[-1]) == (True, Begin())
    assert complaints(instructions) == [
        "what workers have imported since is not imported ahead: it hangs"
    ]


def test_a_failure_kills_all_but_the_standbys_that_are_there() -> None:
    state = replace(FORKS, standbys=(2,), forking=(3,))
    state, instructions = handle(state, Failed("imports take longer than 120 s"))
    assert (state.phase, state.standbys, state.expects) == ("gone", (2,), True)
    killed = {each.process for each in instructions if isinstance(each, Kill)}
    assert (killed, instructions[-1]) == ({1, 3}, TellChange())
    assert handle(state, Failed("again")) == (state, ())


@pytest.mark.parametrize("phase", ["importing", "catching up"])
def test_modules_that_read_a_workers_place_are_not_imported_ahead(phase: machine.Phase) -> None:
    _, instructions = handle(replace(FORKS, phase=phase), announced(reads={"mine": "RANK"}))
    assert "mine reads RANK when it is imported" in complaints(instructions)[-1]


def test_one_that_cannot_be_forked_is_a_standby_itself_and_is_replaced_when_taken() -> None:
    state = State(phase="importing", wanted=2, process=1)
    threads = announced(why_not_fork="it has threads", weight=100)
    state, instructions = handle(state, threads)
    assert (state.phase, state.standbys, state.expects) == ("separate", (1,), True)
    assert len(complaints(instructions)) == 1
    assert handle(state, PLENTY) == (state, ())
    state = fed(state, Taken(is_usable=True))
    assert (state.process, state.standbys, state.expects) == (None, (), False)
    short = replace(state, room=10)
    assert complaints(handle(short, RoomSeen(99, 99))[1]), "it weighs 100 bytes"
    state, instructions = handle(state, PLENTY)
    assert instructions == (ExpectNothing(), Begin())
    _, instructions = handle(fed(state, protocol.Beginning(2), protocol.Started(5)), threads)
    assert not complaints(instructions), "people know it already"


def test_one_that_is_killed_is_started_anew_but_not_for_ever() -> None:
    state = replace(FORKS, standbys=(2,))
    for turn in range(machine.MOST_REVIVALS):
        state, instructions = handle(state, Ended("signal 9"))
        assert (instructions[-1], state.standbys) == (Begin(), (2,))
        state = fed(state, protocol.Beginning(2), protocol.Started(10 + turn), announced())
    state, instructions = handle(state, Ended("signal 9"))
    assert state.phase == "gone"
    assert "has ended (signal 9)" in complaints(instructions)[0]


def test_one_that_ends_while_it_imports_is_not_started_anew() -> None:
    state, _ = handle(State(phase="importing", process=1), Ended("exit code 1"))
    assert state.phase == "gone"


def test_a_standby_that_dies_is_replaced_unless_too_many_do() -> None:
    state = replace(FORKS, standbys=(2, 3, 4), outdated=1)
    state, instructions = handle(state, Died(2))
    assert instructions == (LetGo(2), ExpectNothing(), LookForRoom())
    assert (state.standbys, state.outdated) == ((3, 4), 0)
    state, instructions = handle(fed(state, Forking(5)), Died(5))
    assert instructions[-1] == TellChange(), "others may be met by the same sweep"
    state = replace(state, deaths=machine.MOST_DEATHS + state.wanted - 1)
    state, instructions = handle(state, Died(3))
    assert state.phase == "gone"
    assert "standbys die as soon as they are forked" in complaints(instructions)[0]


def test_no_more_are_wanted_when_memory_is_short_which_is_said_once() -> None:
    state = fed(FORKS, Wanted(3, room=100))
    state, instructions = handle(state, RoomSeen(memory=299, tasks=999))
    assert (state.wanted, state.is_short) == (0, True)
    assert complaints(instructions) == ["there is no memory left for 3 more standbys"]
    state, instructions = handle(fed(state, Wanted(3, room=100)), RoomSeen(299, 999))
    assert not complaints(instructions)
    state = fed(state, Wanted(3, room=100))
    assert handle(state, RoomSeen(300, 999))[1] == (Fork(),) * 3


def test_without_room_for_processes_workers_import_for_themselves() -> None:
    few = RoomSeen(memory=1 << 40, tasks=2 * machine.TASKS - 1)
    assert fed(fed(FORKS, Wanted(2, room=1)), few).phase == "gone"
    assert fed(fed(FORKS, Wanted(2, room=0)), few).phase == "forks", "workers begin at once"


def test_in_the_end_all_processes_are_let_go() -> None:
    state, instructions = handle(replace(FORKS, standbys=(2,), forking=(3,)), protocol.Closed())
    assert instructions == (ExpectNothing(), LetGo(1), LetGo(3), LetGo(2))
    assert (state.phase, state.processes) == ("gone", ())


def test_events_that_come_too_late_change_nothing() -> None:
    for event in (announced("numpy"), Owned(9)):
        assert handle(FORKS, event) == (FORKS, ())
