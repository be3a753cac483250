"""The watch on the agent's loop, over a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from torsh_runtime import status
from torshrun.agent.hang_monitor import HangMonitor
from torshrun.agent.round import Round
from torshrun.health.detector import Hang, Sample
from torshrun.health.pages import StatusPages, WorkerStatus
from torshrun.health.stacks import Stacks
from torshrun.workers.group import WorkerGroup


class QuickLoop(asyncio.SelectorEventLoop):
    """A loop that does not wait for its timers: it moves its clock to the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def time(self) -> float:
        return self.passed

    def run_for(self, seconds: float) -> None:
        """Run every timer of so many seconds."""
        end = self.passed + seconds
        while self.passed < end:
            self.passed += 0.01
            self.call_soon(self.stop)
            self.run_forever()


class Bench(HangMonitor):
    """A watch over one worker that does nothing."""

    def __init__(self, timeout: float) -> None:
        self.loop = QuickLoop()
        self.hangs: list[Hang] = []
        self.looks = 0
        self.output = 0
        self.status = WorkerStatus
        self.pump = SimpleNamespace(stalled=False)
        group = cast(WorkerGroup, SimpleNamespace(loop=self.loop, pump=self.pump))
        nothing = lambda *_: None  # noqa: E731
        super().__init__(timeout, group, nothing, "", nothing, nothing)

    def begin(self) -> None:
        self.start(cast(Round, None))

    def _samples(self, a_round: Round) -> Sequence[Sample]:
        self.looks += 1
        return [Sample(rank=4, output=self.output, status=self.status())]

    async def _inquire(self, hang: Hang, a_round: Round) -> None:
        self.hangs.append(hang)
        self.finding = hang, Stacks({}, "")

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        self.loop.run_for(0.1)
        self.loop.close()


def test_a_hang_is_told_once_in_a_round() -> None:
    with Bench(10) as bench:
        for number in (1, 2):
            bench.begin()
            bench.loop.run_for(30)
            assert len(bench.hangs) == number
        assert bench.hangs[0].suspect == 4


def test_workers_that_write_do_not_hang() -> None:
    with Bench(10) as bench:
        bench.begin()
        for _ in range(10):
            bench.output += 1
            bench.loop.run_for(9)
        assert not bench.hangs


def test_workers_that_are_held_up_do_not_hang() -> None:
    with Bench(10) as bench:
        bench.begin()
        bench.loop.run_for(8)
        bench.pump.stalled = True
        bench.loop.run_for(30)
        bench.pump.stalled = False
        bench.loop.run_for(9)
        assert not bench.hangs
        bench.loop.run_for(3)
        assert bench.hangs


def test_without_a_timeout_nothing_is_looked_at() -> None:
    with Bench(0) as bench:
        bench.begin()
        bench.loop.run_for(30)
        assert bench.looks == 0


def test_a_stopped_watch_is_silent() -> None:
    with Bench(10) as bench:
        bench.begin()
        bench.stop()
        bench.loop.run_for(30)
        assert bench.looks == 0


def test_looks_are_neither_too_frequent_nor_too_rare() -> None:
    for timeout, expected in ((0.5, 0.2), (30, 3.0), (3600, 10.0)):
        with Bench(timeout) as bench:
            bench.begin()
            bench.loop.run_for(expected * 2.5)
            assert bench.looks == 2


def test_the_page_of_a_worker_is_seen(tmp_path: Path) -> None:
    path = str(tmp_path / "status")
    pages = StatusPages(path, 1)
    page = status.take_page(path, 0)
    assert page is not None
    with Bench(10) as bench:
        bench.status = lambda: pages.read()[0]
        bench.begin()
        for step in range(5):
            page.note_step(step)
            bench.loop.run_for(9)
        assert not bench.hangs
        bench.loop.run_for(9)
        assert bench.hangs[0].ranks[0].sample.status.step == 4
    pages.close()
