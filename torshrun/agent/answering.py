"""Answers torshctl's questions to all agents of a run: workers' recordings, and their stacks."""

from __future__ import annotations

import asyncio
import json
import os
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torshrun.agent.diagnosis import in_thread
from torshrun.agent.moment import status_words
from torshrun.agent.round import Round
from torshrun.procfs import read_stat, read_text
from torshrun.rendezvous.base import Answer, Asked, Rendezvous
from torshrun.workers.group import WorkerGroup
from torshrun.workers.worker import Worker

MOST_TRACED = 2
"""Traces that are collected at the same time."""
MOST_WAITING = 4
"""Number of questions that may wait for their turn; others are not answered."""
STACKS_BOUND = 8.0
"""Seconds that the stacks of all workers here may take."""
STACK_CHARS = 1 << 14
"""Characters of one rank's stack."""
_LEVEL = 1
_NO_WORKERS = "no workers run there now"


@dataclass(eq=False)
class Answering:
    """Answers one question after the other, beside what else the agent does."""

    group: WorkerGroup
    rendezvous: Rendezvous
    a_round: Callable[[], Round | None]
    """Gives that of now; None is none."""
    run_id: str
    node_rank: Callable[[], int]

    def __post_init__(self) -> None:
        self._waiting: asyncio.Queue[Asked] = asyncio.Queue(MOST_WAITING)
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._kinds = {"records": self._records, "stacks": self._stacks, "trace": self._trace}
        self._tracing: set[asyncio.Task[None]] = set()

    def ask(self, asked: Asked) -> None:
        """Answer it soon. Called in the loop's thread, and does not wait."""
        if asked.kind == "trace":  # which takes its time, beside the others
            if len(self._tracing) < MOST_TRACED:
                task = asyncio.get_running_loop().create_task(self._reply(asked))
                self._tracing.add(task)
                task.add_done_callback(self._tracing.discard)
            return
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())
        if not self._waiting.full():  # who asks is told that this node did not answer
            self._waiting.put_nowait(asked)

    async def close(self) -> None:
        self._is_closing = True
        tasks = [*self._tracing, *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            await self._reply(await self._waiting.get())

    async def _reply(self, asked: Asked) -> None:
        try:
            answer = await self._answer(asked)
        except Exception as error:  # whoever asks is no reason for the job to end
            answer = Answer(b"", f"internal error: {error!r}")
        await self.rendezvous.answer(asked, answer)

    async def _answer(self, asked: Asked) -> Answer:
        if asked.kind not in self._kinds:
            return Answer(b"", f"this agent cannot answer that ({asked.kind[:40]!r})")
        if not self.group.workers or self.a_round() is None:
            return Answer(b"", _NO_WORKERS)
        return await self._kinds[asked.kind](asked)

    async def _records(self, _: Asked) -> Answer:
        a_round = self.a_round()
        assert a_round
        first, again = a_round.recordings.copy(), a_round.recordings.copy()
        if not first:
            return Answer(b"", "workers there have recorded nothing")
        whose = self.run_id, a_round.number, self.node_rank(), self.group.workers[0].rank
        at = time.monotonic()
        clock = self.rendezvous.common_clock(at)

        def packed() -> bytes:
            from torshrun.health.recordings import framed, without_changed

            content = framed(without_changed(first, again), *whose, at, clock)
            return zlib.compress(content, _LEVEL)

        return Answer(await in_thread(packed))

    async def _trace(self, asked: Asked) -> Answer:
        """Answer with what the workers record from now on.

        Record for the requested time, or until the round is over.
        """
        from torshrun.health.tracing import InvalidTrace, trace_asked

        a_round = self.a_round()
        assert a_round
        workers = [*self.group.workers]
        at = time.monotonic()
        clock = self.rendezvous.common_clock(at)
        about = {
            "host": os.uname().nodename,
            "node": self.node_rank(),
            "round": a_round.number,
            "ranks": {place: each.rank for place, each in enumerate(workers)},
            "pids": {place: each.pid for place, each in enumerate(workers)},
            "clock": [clock.leader, *clock.reading] if clock else None,
        }

        def goes_on() -> bool:
            return not self._is_closing and self.a_round() is a_round

        file = workers[0].assignment.worker.status_file
        try:
            content = await in_thread(
                partial(trace_asked, file, asked.argument, asked.most, about, goes_on)
            )
        except InvalidTrace as error:
            return Answer(b"", str(error))
        return Answer(content)

    async def _stacks(self, _: Asked) -> Answer:
        from torshrun.health.stacks import collect

        workers = [*self.group.workers]
        stacks = await collect([each.pid for each in workers if each.alive], STACKS_BOUND)
        told = {
            "host": os.uname().nodename,
            "node": self.node_rank(),
            "hint": stacks.hint,
            "ranks": {each.rank: _told(each, stacks.texts.get(each.pid, "")) for each in workers},
        }
        return Answer(zlib.compress(json.dumps(told).encode(), _LEVEL))


def _told(worker: Worker, stack: str) -> Mapping[str, Any]:
    """Return where a rank is: what py-spy sees, or the stack that its start hook has left."""
    from torshrun.health.waits import wait_of

    stat = read_stat(worker.pid) if worker.alive else None
    wait = wait_of(worker.pid) if worker.alive else None
    path = worker.assignment.worker.stack_file
    left = "" if stack or not path else read_text(path, STACK_CHARS)
    return {
        "pid": worker.pid,
        "ended": "" if worker.alive else status_words(worker.status),
        "state": stat.state if stat else "",
        "waits": wait.what if wait else "",
        "stack": (stack or left)[:STACK_CHARS],
    }
