"""Real training loops whose workers and agents are SIGKILLed at random, again and again.

A short form runs with the other tests; `scripts/soak` runs 100 kills of workers and 20 of agents.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.named_memory import held_by_others, named_memory
from support.processes import marked, soon

from torshrun import exit_codes

PATIENCE = 60.0
WORKERS = 4
# Each worker also leaves a child that ignores SIGTERM in a session of its own.
WORKER = """
import os, signal, time
import numpy as np
import torsh_runtime as tr
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)
tr.init_process_group(timeout=60)
generator = np.random.default_rng(0)
print("training", flush=True)
while True:
    array = np.ones(int(generator.integers(1, 300_000)), np.float32)
    tr.all_reduce(array)
    assert (array == tr.get_world_size()).all()
"""


class Job:
    """A torshrun whose processes carry a mark."""

    def __init__(self, folder: Path, restarts: int) -> None:
        self.folder = folder
        self.mark = os.urandom(8).hex()
        script = folder / "worker.py"
        script.write_text(WORKER)
        self.scratch = folder / "scratch"
        self.scratch.mkdir(exist_ok=True)
        self.log = folder / "log"
        options = ["--nproc-per-node", str(WORKERS), "--max-restarts", str(restarts)]
        options += ["--restart-backoff", "0"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "torshrun",
                    *options,
                    "--shutdown-timeout",
                    "5",
                    script,
                ],
                env={**os.environ, "MARK": self.mark, "TMPDIR": str(self.scratch)},
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        """A job that a failed test leaves would run for ever."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def workers(self) -> dict[int, int]:
        """Pid of each rank's worker of the newest round, by rank."""
        newest: dict[int, tuple[int, int]] = {}
        keepers = {pid for pid, parent in marked(self.mark).items() if parent == self.process.pid}
        for pid, parent in marked(self.mark).items():
            if parent in keepers and (place := worker_place(pid)):
                newest[place[1]] = max(newest.get(place[1], (-1, -1)), (place[0], pid))
        return {rank: pid for rank, (_, pid) in newest.items()}

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def assert_nothing_is_left(self) -> None:
        assert soon(lambda: not marked(self.mark)), marked(self.mark)
        assert soon(lambda: not any(self.scratch.iterdir())), list(self.scratch.iterdir())
        left = named_memory()
        assert not left - held_by_others(left)


def worker_place(pid: int) -> tuple[int, int] | None:
    """Round and rank of a worker; None for its child and for what has ended."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().decode()
        group = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[2])
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    found = dict(entry.partition("=")[::2] for entry in environ.split("\0"))
    if "RANK" not in found or group != pid or b"worker.py" not in command:
        return None
    return int(found["TORSH_ROUND"]), int(found["RANK"])


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--soak"))


@pytest.fixture
def chance() -> Iterator[random.Random]:
    seed = int(os.environ.get("TORSH_TEST_SEED", random.SystemRandom().randrange(10**6)))
    print(f"TORSH_TEST_SEED={seed}")  # shown when the test fails
    return random.Random(seed)


def test_workers_are_killed_again_and_again(
    tmp_path: Path, soak: bool, chance: random.Random
) -> None:
    kills = 100 if soak else 8
    victims = []
    with Job(tmp_path, kills - 1) as job:
        for number in range(kills):
            came = soon(lambda n=number: at_work(job, n), PATIENCE)
            assert came, f"no round {number}:\n{job.text()}"
            time.sleep(chance.random() * 0.8)
            rank, pid = chance.choice(sorted(job.workers().items()))
            os.kill(pid, signal.SIGKILL)
            victims.append((rank, pid))
        assert job.process.wait(PATIENCE) == exit_codes.BUDGET_SPENT
    job.assert_nothing_is_left()
    reported = re.findall(
        r"rank (\d+) (?:most likely )?failed first: killed by SIGKILL.* pid (\d+),", job.text()
    )
    assert [(int(rank), int(pid)) for rank, pid in reported] == victims


def at_work(job: Job, number: int) -> bool:
    """Whether all workers of this round are there, perhaps still importing."""
    pids = job.workers().values()
    places = [worker_place(pid) for pid in pids]
    return sum(1 for place in places if place and place[0] == number) == WORKERS


def test_agents_are_killed_again_and_again(
    tmp_path: Path, soak: bool, chance: random.Random
) -> None:
    for _ in range(20 if soak else 4):
        with Job(tmp_path, 3) as job:
            time.sleep(chance.random() * 2.0)
            workers = list(job.workers().values())
            if workers and chance.random() < 0.3:  # in the middle of a restart
                os.kill(chance.choice(workers), signal.SIGKILL)
                time.sleep(chance.random() * 0.3)
        job.assert_nothing_is_left()
