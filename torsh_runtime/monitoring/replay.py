"""Computes how long steps would take if a rank's own work were as long as the others': a replay of
the dependencies between operations.

A rank's main thread works, enters operations, and waits for those in the background. An operation
begins to move when its last member has entered it, and moves as long as it did. In the background a
group carries out one operation after another.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torsh_runtime.monitoring.joining import Call, Key
from torsh_runtime.monitoring.stretches import Stretch

_QUEUED = 50e-6
"""Seconds: an operation that begins so soon after the one before it has waited for it."""


@dataclass(frozen=True, slots=True)
class Action:
    """Something that a rank does, after some work of its own."""

    kind: Literal["enter", "begin", "await", "end"]
    """Enter an operation; begin one in the background; wait for that; nothing more."""
    work: float
    """Seconds of its own work since the action before."""
    call: Call | None = None

    @property
    def likeness(self) -> object:
        """Return what is the same for actions of other ranks at the same place of the program."""
        operation = self.call.operation if self.call else None
        return self.kind, operation and (operation.operation, operation.group, operation.elements)


def speedup_without(
    rank: int, calls: Mapping[int, Sequence[Call]], windows: Mapping[int, Stretch], steps: int
) -> float | None:
    """Return how many times as fast the steps would be if this rank worked as long as the others do
    in the median. `windows` has begin and end of the part of each rank, and `steps` is the number
    of steps in it. None if it is not known."""
    programs = {each: program(calls[each], *window) for each, window in windows.items()}
    first = min(begin for begin, _ in windows.values())
    starts = {each: begin - first for each, (begin, _) in windows.items()}
    changed = {**programs, rank: _like_others(rank, programs, steps)}
    before, after = duration(programs, starts), duration(changed, starts)
    return before / after if before and after else None


def program(calls: Sequence[Call], begin: float, end: float) -> list[Action]:
    """Return what a rank did between these moments, in order."""
    issued = [(moment, call) for moment, call in _issued(calls) if begin <= moment < end]
    found: list[Action] = []
    now = begin
    for moment, call in sorted(issued, key=lambda each: (each[0], each[1].operation.number)):
        if moment < now and call.left <= now and not call.operation.in_background:
            continue  # it is a part of the one before
        work = max(moment - now, 0.0)
        if call.operation.in_background:
            found.append(Action("begin", work, call))
            now = max(now, moment)
            continue
        is_wait = call.operation.operation == "wait"
        found.append(Action("await" if is_wait else "enter", work, call))
        now = max(now, call.left)
    found.append(Action("end", max(end - now, 0.0)))
    return found


def _issued(calls: Sequence[Call]) -> list[tuple[float, Call]]:
    """Return the time at which the main thread came to each call. For one that was queued this
    is not known: the time of the one before is used, which makes no difference while that is
    running."""
    found: list[tuple[float, Call]] = []
    before: dict[int, tuple[float, float]] = {}
    for call in calls:
        moment = call.entered
        if call.operation.in_background:
            issued, left = before.get(call.operation.group, (moment, float("-inf")))
            moment = issued if moment - left < _QUEUED else moment
            before[call.operation.group] = moment, call.left
        found.append((moment, call))
    return found


def _like_others(rank: int, programs: Mapping[int, Sequence[Action]], steps: int) -> list[Action]:
    """Return the rank's program with the work of the other rank whose work is the median: place by
    place where both do the same, else scaled to it as a whole. It is taken from the step after, so
    that a chance that lengthened a step of that rank does not count as shared by this one."""
    own = programs[rank]
    totals = sorted((sum(_works(each)), other) for other, each in programs.items() if other != rank)
    total, typical = totals[(len(totals) - 1) // 2]
    likeness = [action.likeness for action in own]
    if likeness == [action.likeness for action in programs[typical]]:
        works = _works(programs[typical])
        period, rest = divmod(len(works) - 1, steps)
        if not rest:
            works = [*works[period:-1], *works[:period], works[-1]]
    else:
        before = sum(_works(own))
        works = [work * total / before if before else 0.0 for work in _works(own)]
    return [replace(action, work=work) for action, work in zip(own, works, strict=True)]


def _works(actions: Sequence[Action]) -> list[float]:
    return [action.work for action in actions]


@dataclass(slots=True)
class _Meeting:
    """An operation in the replay, for all that enter it."""

    missing: int = 0
    came: float = 0.0
    """Latest time at which one of them has entered."""

    def enter(self, now: float) -> None:
        self.missing -= 1
        self.came = max(self.came, now)


def duration(programs: Mapping[int, Sequence[Action]], starts: Mapping[int, float]) -> float | None:
    """Return the seconds until the last rank's end. None if they wait in a circle, as in
    nonsense."""
    return _Replay(programs, starts).run()


class _Replay:
    def __init__(
        self, programs: Mapping[int, Sequence[Action]], starts: Mapping[int, float]
    ) -> None:
        self._meetings: dict[Key, _Meeting] = {}
        self._begun: dict[tuple[int, Key | None], float] = {}
        self._ended: dict[tuple[int, Key | None], float] = {}
        """Times at which operations in the background were begun, and had ended, by rank."""
        self._moves = 0
        self._end = 0.0
        lanes: dict[tuple[int, int], list[Call]] = {}
        for rank, actions in programs.items():
            for call in (each.call for each in actions if each.call and each.kind != "await"):
                if call.key is not None:
                    self._meetings.setdefault(call.key, _Meeting()).missing += 1
                if call.operation.in_background:
                    lanes.setdefault((rank, call.operation.group), []).append(call)
        self._expected = {(rank, call.key) for (rank, _), held in lanes.items() for call in held}
        self._threads = [self._main(each, programs[each], starts[each]) for each in programs]
        self._threads += [self._lane(rank, held) for (rank, _), held in lanes.items()]

    def run(self) -> float | None:
        """Let each thread go as far as it can, in turns. Return the time of the end, or None if
        they are stuck."""
        threads, before = self._threads, -1
        while threads and self._moves != before:
            before = self._moves
            threads = [each for each in threads if next(each, "over") != "over"]
            self._moves += len(threads) != len(self._threads)
            self._threads = threads
        return None if threads else self._end

    def _main(self, rank: int, actions: Sequence[Action], now: float) -> Iterator[str]:
        """Carry out a rank's main thread. Yields where it has to wait."""
        for action in actions:
            now += action.work
            call = action.call
            if call is None:
                continue
            if action.kind == "begin":
                self._begun[rank, call.key] = now
            elif action.kind == "await" and (rank, call.key) in self._expected:
                while (rank, call.key) not in self._ended:
                    yield "waits for the background"
                now = max(now, self._ended[rank, call.key])
            elif action.kind == "await" or call.key is None:
                now += call.left - call.entered
            else:
                now = yield from self._meet(call, now)
            self._moves += 1
        self._end = max(self._end, now)

    def _lane(self, rank: int, calls: Sequence[Call]) -> Iterator[str]:
        """Carry out a group's operations in the background of a rank, one after another."""
        now = 0.0
        for call in calls:
            while (rank, call.key) not in self._begun:
                yield "waits to be begun"
            now = max(now, self._begun[rank, call.key])
            now = yield from self._meet(call, now)
            self._ended[rank, call.key] = now
            self._moves += 1

    def _meet(self, call: Call, now: float) -> Generator[str, None, float]:
        """Enter the operation at the moment `now`. Return the time at which it is left."""
        if call.key is None:
            return now + call.left - call.entered
        meeting = self._meetings[call.key]
        meeting.enter(now)
        self._moves += 1
        if call.operation.operation == "send":  # a send waits for nobody
            return now + call.left - call.entered
        while meeting.missing > 0:
            yield "waits for others"
        return max(now, meeting.came) + call.left - call.came
