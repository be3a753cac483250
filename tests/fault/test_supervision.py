"""Workers and agents killed at random moments: nobody is left behind, and nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.processes import marked, soon

from torshrun import exit_codes

QUICK = ("--shutdown-timeout", "5", "--restart-backoff", "0")
SCRIPT = """
import os, signal, sys, time
def leave_daemon():
    if os.fork():
        return
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(2):
        os.fork()
    while True:
        time.sleep(60)
leave_daemon()
if os.fork() == 0:
    while True:
        time.sleep(60)
print("up", os.getpid(), os.environ["TORSH_ROUND"], flush=True)
while True:
    time.sleep(60)
"""


class Job:
    """One torshrun whose whole tree can be found by a mark in its environment."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.mark = os.urandom(8).hex()
        self.scratch = folder / "tmp"
        self.scratch.mkdir()
        script = folder / "train.py"
        script.write_text(SCRIPT)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "torshrun", *options, str(script)],
            env={**os.environ, "MARK": self.mark, "TMPDIR": str(self.scratch)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def worker(self) -> int:
        """Pid of the next worker that reports itself."""
        assert self.process.stdout
        for line in self.process.stdout:
            if " up " in line:
                return int(line.split()[2])
        raise AssertionError("the job ended")

    def tree(self) -> dict[int, int]:
        """Living processes of the job (zombies apart), and their parents."""
        return marked(self.mark)

    def assert_gone(self) -> None:
        gone = soon(lambda: not self.tree())
        left = self.tree()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert gone, left
        assert soon(lambda: not any(self.scratch.iterdir()))

    def end(self) -> int:
        """Take the output that is left; the exit code."""
        self.process.communicate(timeout=20)
        return self.process.returncode


def test_twenty_workers_are_killed_and_restarted(tmp_path: Path) -> None:
    chance = random.Random(7)
    job = Job(tmp_path, *["--nproc-per-node", "2", "--max-restarts", "20"], *QUICK)
    for _ in range(20):
        pids = [job.worker(), job.worker()]
        time.sleep(chance.random() * 0.05)
        os.kill(chance.choice(pids), signal.SIGKILL)
    pids = [job.worker(), job.worker()]
    assert len(job.tree()) <= 2 + 2 * 6  # agent, keeper, one round's workers and theirs
    os.kill(pids[0], signal.SIGKILL)
    assert job.end() == exit_codes.BUDGET_SPENT
    job.assert_gone()


@pytest.mark.parametrize("seed", range(10))
def test_an_agent_is_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    job = Job(tmp_path, *["--nproc-per-node", "3", "--max-restarts", "9"], *QUICK)
    if chance.random() < 0.7:
        job.worker()
        time.sleep(chance.random() * 0.1)
    else:
        time.sleep(chance.random() * 0.4)
    agent = job.process.pid
    victims = [pid for pid, parent in job.tree().items() if agent not in (pid, parent)]
    if victims and chance.random() < 0.3:  # in the middle of a restart; the keeper stays
        os.kill(chance.choice(victims), signal.SIGKILL)
    job.process.kill()
    job.end()
    job.assert_gone()


def test_an_agent_killed_while_its_workers_stop(tmp_path: Path) -> None:
    job = Job(tmp_path, "--nproc-per-node", "2")
    job.worker()
    job.process.terminate()
    time.sleep(0.05)
    job.process.kill()
    job.end()
    job.assert_gone()


def test_a_stopped_agent_does_not_keep_its_workers_once_it_is_killed(tmp_path: Path) -> None:
    job = Job(tmp_path, "--nproc-per-node", "2")
    job.worker()
    job.process.send_signal(signal.SIGSTOP)
    job.process.kill()
    job.end()
    job.assert_gone()


def test_a_stopped_worker_is_killed_after_the_grace(tmp_path: Path) -> None:
    job = Job(tmp_path, "--nproc-per-node", "2", "--shutdown-timeout", "0.3")
    os.kill(job.worker(), signal.SIGSTOP)
    os.kill(job.worker(), signal.SIGKILL)
    assert job.end() == 137
    job.assert_gone()
