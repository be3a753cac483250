"""Watches whether the workers of a round hang, and finds out where they stand if they do."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from torsh_runtime.transitions import Machine
from torshrun.agent import protocol
from torshrun.agent.round import Round
from torshrun.text import format_ranks
from torshrun.workers.group import WorkerGroup
from torshrun.workers.worker import Worker

if TYPE_CHECKING:
    from torshrun.health.detector import Hang, Sample
    from torshrun.health.stacks import Stacks
    from torshrun.health.timers import TimerServer

STACKS_BOUND = 20.0
"""Seconds that finding out the stacks of workers that hang may take."""
_SHORTEST, _LONGEST = 0.2, 10.0  # seconds between two looks


@dataclass(eq=False)
class HangMonitor:
    """Watches one round at a time. All methods belong to the loop's thread."""

    timeout: float
    """Seconds without progress that are a hang; 0 never looks at all."""
    group: WorkerGroup
    post: Callable[[protocol.Event], None]
    """Takes the event that reports a hang."""
    timer_file: str
    on_expired: Callable[[int, str], None]
    """Called with the rank of a worker whose own timer ran out, and what happened, just before."""
    say: Callable[[str], None]
    """Gets a line for people."""

    def __post_init__(self) -> None:
        self._interval = min(max(self.timeout / 10, _SHORTEST), _LONGEST)
        self._loop = self.group.loop
        self._watching: asyncio.Task[None] | None = None
        self._timers: TimerServer | None = None
        if self.timer_file:
            from torshrun.health.timers import TimerServer

            self._timers = TimerServer(self.timer_file, self._loop, self._ranks, self.on_expired)
        self.finding: tuple[Hang, Stacks] | None = None
        """The hang of this round, and where its workers stand, by rank."""
        self._has_pardoned = False
        self._seen = Machine("hangs", "idle")

    def start(self, a_round: Round) -> None:
        """Watch this round, whose pages stay open until stop(). A hang is reported once."""
        self.finding, self._has_pardoned = None, False
        if self._timers:
            self._timers.forget()
        if self.timeout > 0:
            self._seen.become("watching")
            self._watching = self._loop.create_task(self._watch(a_round))
            # What goes wrong there is an internal error of a callback, and not forgotten.
            self._watching.add_done_callback(lambda task: task.cancelled() or task.result())

    def stop(self) -> None:
        if self._watching:
            self._watching.cancel()
            self._seen.become("idle")

    def close(self) -> None:
        self.stop()
        if self._timers:
            self._timers.close()

    async def _watch(self, a_round: Round) -> None:
        from torshrun.health.detector import HangDetector

        begin = partial(HangDetector, self.timeout, 3 * self._interval + 1)
        detector = begin()
        while not self.finding:
            await asyncio.sleep(self._interval)
            if self.group.pump.stalled:  # what was seen so far says nothing
                detector = begin()
            elif hang := detector.observe(self._loop.time(), self._samples(a_round)):
                await self._inquire(hang, a_round)
                detector = begin()

    def _samples(self, a_round: Round) -> Sequence[Sample]:
        """Return a sample of each worker.

        What workers have left running counts for each of them: it is not known whose it is.
        """
        from torshrun import procfs
        from torshrun.health.detector import Sample

        workers, statuses = self.group.workers, a_round.pages.read()
        left = set(procfs.children(self.group.keeper.pid)) - {worker.pid for worker in workers}
        orphans = sum(map(procfs.cpu_seconds, left))
        stats = [procfs.read_stat(worker.pid) if worker.alive else None for worker in workers]
        return [
            Sample(
                rank=worker.rank,
                status=status,
                output=worker.output,
                cpu=orphans + (procfs.cpu_seconds(worker.pid) if stat else 0.0),
                alive=worker.alive,
                state=stat.state if stat else "",
            )
            for worker, status, stat in zip(workers, statuses, stats, strict=True)
        ]

    async def _inquire(self, hang: Hang, a_round: Round) -> None:
        """Find out where the workers stand, while they still do."""
        from torshrun.health.detector import place_of_suspect
        from torshrun.health.stacks import Stacks, collect, is_at_breakpoint

        pids, before = self._ranks(), self._progress(a_round)
        ranks = [each.sample.rank for each in hang.ranks]
        self._seen.become("inquiring", format_ranks(ranks), round=a_round.number)
        try:
            stacks = await collect(list(pids), STACKS_BOUND)
        except Exception as error:  # the hang is to be ended all the same
            stacks = Stacks({}, f"no stacks: {error!r}")
        if self._progress(a_round) != before:  # it took its time, but goes on
            self._seen.become("watching", "they go on", round=a_round.number)
            return
        texts = {pids[pid]: text for pid, text in stacks.texts.items()}
        held = {each.sample.rank for each in hang.ranks if each.sample.state == "t"}
        held |= {rank for rank, text in texts.items() if is_at_breakpoint(text)}
        if held:
            self._pardon(held)
            self._seen.become("watching", "in a debugger", round=a_round.number)
            return
        self._seen.become("found", stacks.hint, round=a_round.number)
        self.finding = hang, Stacks(texts, stacks.hint)
        # Workers leave their stacks by themselves where the start hook could see to it; else
        # SIGABRT makes faulthandler write those that could not be had.
        told = any(texts.values()) or all(map(_leaves_stack, self.group.workers))
        signo = signal.SIGTERM if told else signal.SIGABRT
        here = (each.local_rank for each in self.group.workers if each.rank == hang.suspect)
        suspect = next(here, -1)
        self.post(protocol.Hung(a_round.number, signo, suspect, place_of_suspect(hang)))

    def _pardon(self, held: Collection[int]) -> None:
        """Go on, though others wait for these; said once a round."""
        if not self._has_pardoned:
            self._has_pardoned = True
            is_in = "is in" if len(held) == 1 else "are in"
            self.say(f"{format_ranks(held)} {is_in} a debugger, which does not count as a hang")

    def _ranks(self) -> dict[int, int]:
        """Return the ranks of the workers that run, by pid."""
        return {worker.pid: worker.rank for worker in self.group.workers if worker.alive}

    def _progress(self, a_round: Round) -> object:
        seen = [(worker.output, worker.alive) for worker in self.group.workers]
        return a_round.pages.read(), seen


def _leaves_stack(worker: Worker) -> bool:
    return not worker.alive or os.path.lexists(worker.assignment.worker.stack_file)
