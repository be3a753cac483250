"""Which processes count as started by a worker that is dead, and when it is forgotten."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes import soon

from torshrun.procfs import read_stat, start_time
from torshrun.workers.orphans import Orphans

LEADER = "import subprocess as s; print(s.Popen(['/bin/sleep', '600']).pid, flush=True); input()"


class Asked:
    """Stands for the keeper, whose answers the test gives."""

    def __init__(self) -> None:
        self.count = 0

    def ask_left(self, tag: int) -> None:
        self.count += 1

    def flush(self) -> None:
        pass


@contextmanager
def group_with_a_child() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that leads a session, and a child of it."""
    command = [sys.executable, "-c", LEADER]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        try:
            yield leader, child
        finally:
            leader.kill()
            if runs(child):
                os.kill(child, 9)


def runs(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.state != "Z"


def worker(pid: int, began: int | None) -> Any:
    place = SimpleNamespace(rank=1, round=0)
    return SimpleNamespace(pid=pid, start_time=began, assignment=SimpleNamespace(worker=place))


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def orphans(asked: Asked) -> Iterator[Orphans]:
    loop = asyncio.new_event_loop()
    each = Orphans(asked, loop)  # type: ignore[arg-type]
    yield each
    each.stop()
    loop.close()


def test_what_a_dead_worker_had_started_is_killed(orphans: Orphans) -> None:
    with group_with_a_child() as (leader, child):
        dead = worker(leader.pid, start_time(leader.pid))
        leader.kill()
        leader.wait(10)
        orphans.end_those_of(dead, 1)
        orphans.take([child])
        assert soon(lambda: not runs(child))


def test_a_process_that_got_a_dead_workers_pid_is_left_alone(orphans: Orphans) -> None:
    with group_with_a_child() as (leader, child):
        began = start_time(leader.pid)
        assert began is not None
        orphans.end_those_of(worker(leader.pid, began - 100), 1)
        orphans.take([leader.pid, child])
        assert not soon(lambda: not runs(child) or not runs(leader.pid), 0.3)


def test_a_worker_that_is_not_reaped_is_kept_and_then_forgotten(
    orphans: Orphans, asked: Asked
) -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        dead = worker(process.pid, start_time(process.pid))
        process.kill()
        assert soon(lambda: not runs(process.pid))
        orphans.end_those_of(dead, 1)
        orphans.take([process.pid])  # itself, which is not reaped yet
        process.wait(10)
        orphans.look()
        assert asked.count == 2
        orphans.take([])  # nothing is left of it
        orphans.look()
        assert asked.count == 2
