"""Processes that wait to be workers: spared until they are, and ended with everybody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.keeper_talk import Conversation
from support.processes import marked, soon

from torsh_runtime.errors import ConfigError
from torshrun.workers import keeper as k

SLEEP = ["/bin/sleep", "600"]
FORKS = """
import os, pathlib, sys, time
if os.fork() == 0:
    if os.fork():
        os._exit(0)
    os.setsid()
    pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
    os.execv("/bin/sleep", ["sleep", "600"])
time.sleep(600)
"""


@pytest.fixture
def mark() -> str:
    return os.urandom(8).hex()


@pytest.fixture(params=[False, True], ids=["plain", "namespace"])
def talk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Conversation]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    try:
        made = Conversation(scratch, request.param)
    except ConfigError as error:
        pytest.skip(str(error))
    yield made
    assert made.keeper.close(10)


def swept(talk: Conversation, number: int) -> None:
    talk.keeper.sweep(number, 5)
    assert talk.until(k.Swept, number)[-1].unkillable == ()  # type: ignore[attr-defined]


def test_sweeps_and_signals_for_all_leave_it_alone_until_it_is_taken(
    talk: Conversation, mark: str
) -> None:
    talk.spawn(1, SLEEP, MARK=mark)
    talk.spawn(2, SLEEP, parked=True, MARK=mark)
    talk.until(k.Spawned, 2)
    talk.keeper.signal(k.ALL, signal.SIGTERM)
    assert [each.worker_id for each in talk.until(k.Exited)] == [1]  # type: ignore[attr-defined]
    swept(talk, 1)
    assert len(marked(mark)) == 1
    talk.keeper.take(2)
    swept(talk, 2)
    assert [each.worker_id for each in talk.until(k.Exited, 2)] == [1, 2]  # type: ignore[attr-defined]
    assert not marked(mark)


def fork(talk: Conversation, tmp_path: Path, mark: str) -> int:
    """Spawn a parked process, 1, that leaves the keeper a child; that one's pid in there."""
    told = tmp_path / "pid"
    talk.spawn(1, [sys.executable, "-c", FORKS, str(told)], parked=True, MARK=mark)
    assert soon(lambda: told.exists() and told.read_text() != "")
    return int(told.read_text())


def test_a_child_that_it_owns_is_a_worker_when_it_is_taken(
    talk: Conversation, tmp_path: Path, mark: str
) -> None:
    pid = fork(talk, tmp_path, mark)
    talk.keeper.own(2, pid, 4321)
    assert k.Spawned(2, 4321) in talk.until(k.Spawned, 2)
    talk.keeper.take(2)
    talk.keeper.signal(2, signal.SIGUSR1)
    (ended,) = talk.until(k.Exited)
    assert (ended.worker_id, ended.status) == (2, signal.SIGUSR1)  # type: ignore[attr-defined]
    assert len(marked(mark)) == 1


def test_one_that_it_does_not_own_is_swept(talk: Conversation, tmp_path: Path, mark: str) -> None:
    fork(talk, tmp_path, mark)
    assert soon(lambda: len(marked(mark)) == 2)
    swept(talk, 1)
    assert len(marked(mark)) == 1


def test_what_is_no_child_of_its_own_is_refused(talk: Conversation, tmp_path: Path) -> None:
    stranger = subprocess.Popen(SLEEP)
    try:
        talk.spawn(1, SLEEP)
        (mine,) = talk.until(k.Spawned)
        for number, pid in enumerate((stranger.pid, 0, -1, 1, os.getpid()), 2):
            talk.keeper.own(number, pid, pid)
        talk.keeper.own(9, mine.pid, mine.pid)  # type: ignore[attr-defined]
        refused = talk.until(k.SpawnFailed, 6)
        assert [each.worker_id for each in refused] == [2, 3, 4, 5, 6, 9]  # type: ignore[attr-defined]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("how", ["dead man", "close"])
def test_in_the_end_nobody_is_spared(tmp_path: Path, mark: str, how: str) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    talk = Conversation(scratch)
    pid = fork(talk, tmp_path, mark)
    talk.keeper.own(2, pid, pid)
    talk.until(k.Spawned, 2)
    if how == "dead man":
        talk.arm(0.05)
        talk.until(k.DeadManFired)
        talk.until(k.Exited, 2)
    assert talk.keeper.close(10)
    assert soon(lambda: not marked(mark)), marked(mark)
