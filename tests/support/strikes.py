"""Processes that work in groups at random, one of which is struck, and what the others say then."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from support.gates import Gate
from support.random_steps import take_steps

import torsh_runtime as tr
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup

PATIENCE = 60.0
"""Seconds after which who has not said how its work ended counts as hanging."""

World = Callable[[Callable[[int], Any], Callable[[list[int]], None]], list[Any]]
"""(body, meanwhile) -> what each rank's body gave, as worlds.run_processes."""


class Verdict(NamedTuple):
    """How work in a group ended. Ranks are those of the default group."""

    members: tuple[int, ...]
    kind: str
    culprits: tuple[int, ...]
    """Whom it blames."""
    text: str


Program = Callable[[int, Callable[[], None]], list[Verdict]]
"""(seed, begin) -> how work, as the seed has it, ended: once for each thread. Calls begin() when it
has made its groups.
"""


class Strike(NamedTuple):
    """What is done to whom, after how many seconds of work."""

    act: Callable[[list[int]], None]
    """Gets everybody's pid."""
    victims: Sequence[int]
    """Who is not asked how its work ended."""
    moment: float


def run_struck(
    world: World, ranks: int, program: Program, seed: int, strike: Strike
) -> dict[int, list[Verdict]]:
    """The survivors' verdicts. Nobody leaves before all have found theirs."""
    survivors = sorted(set(range(ranks)) - set(strike.victims))
    with Gate() as begun, Gate() as told, Gate() as released:

        def body(rank: int) -> list[Verdict]:
            faulthandler.enable()
            verdicts = program(seed, begun.open)
            told.open()
            released.wait(1, PATIENCE)
            default_group().abort()  # nobody need wait for the struck one to take its leave
            return verdicts

        def meanwhile(pids: list[int]) -> None:
            if begun.wait(ranks, PATIENCE):
                time.sleep(strike.moment)
                strike.act(pids)
            if not told.wait(len(survivors), PATIENCE):
                _end(pids, survivors, signal.SIGABRT)  # which shows where they are
            _end(pids, strike.victims, signal.SIGKILL)
            released.open(len(survivors))

        results = world(body, meanwhile)
    for rank in survivors:
        assert isinstance(results[rank], list), f"rank {rank} hangs, or gave {results[rank]}"
    return {rank: results[rank] for rank in survivors}


def _end(pids: list[int], ranks: Sequence[int], number: signal.Signals) -> None:
    for rank in ranks:
        os.kill(pids[rank], number)


def in_one_group(seed: int, begin: Callable[[], None]) -> list[Verdict]:
    """All ranks, in the default group."""
    begin()
    return [_verdict(default_group(), lambda group: take_steps(group, random.Random(seed)))]


def in_two_groups_at_once(seed: int, begin: Callable[[], None]) -> list[Verdict]:
    """Two groups of all ranks, each used by a thread of its own."""
    groups = [tr.new_group(), tr.new_group()]
    found: list[Verdict] = []
    begin()

    def work(number: int) -> None:
        choose = random.Random(seed + number)
        found.append(_verdict(groups[number], lambda group: take_steps(group, choose)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def in_sub_groups(seed: int, begin: Callable[[], None]) -> list[Verdict]:
    """Now in sub-groups of every second rank, and now all together, where the members of a
    sub-group that has failed go on. Who has seen the whole fail leaves its sub-group.
    """
    choose, part = random.Random(seed), tr.split(tr.get_rank() % 2)
    assert part is not None
    begin()
    found: list[Verdict] = []
    while True:
        for group in (part, default_group()):
            own, count = random.Random(choose.random()), choose.randrange(1, 5)
            is_over = group is part and (found or group.world_size == 1)
            try:
                take_steps(group, own, 0 if is_over else count)
            except BaseException as error:
                found.append(_judged(group, error))
                if group is not part:
                    part.close()
                    return found


def in_ever_new_groups(seed: int, begin: Callable[[], None]) -> list[Verdict]:
    """Groups of all ranks, one after the other."""
    choose, group = random.Random(seed), default_group()
    begin()
    try:
        while True:
            group = tr.new_group()
            take_steps(group, choose, choose.randrange(3))
            group.close()
    except BaseException as error:
        return [_judged(group, error)]


PROGRAMS: list[Program] = [in_one_group, in_two_groups_at_once, in_sub_groups]


def _verdict(group: ProcessGroup, work: Callable[[ProcessGroup], None]) -> Verdict:
    try:
        work(group)
    except BaseException as error:
        return _judged(group, error)
    raise AssertionError("it ended well")


def _judged(group: ProcessGroup, error: BaseException) -> Verdict:
    match error:
        case tr.PeerLost():
            culprits: Sequence[int] = [error.rank]
        case tr.CommTimeout():
            culprits = error.missing
        case _:
            culprits = []
    text = "".join(traceback.format_exception(error))
    blamed = tuple(map(group.global_rank, culprits))
    return Verdict(tuple(group.ranks), type(error).__name__, blamed, text)
