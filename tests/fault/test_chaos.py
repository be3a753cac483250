"""Signals to anybody at any moment: everything ends in time, nothing is left, no line is torn."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.processes import marked, soon

from torshrun import exit_codes

WORKERS = 3
AGENT_TIMEOUT = 1.0
SLACK = 20.0
"""Seconds that a loaded machine may take longer than configured."""
DEADLINE = 0.5 + 5.0 + 2.0 + SLACK
WORKER = """
import os, signal, sys, threading, time
rank, attempt = int(os.environ["RANK"]), os.environ["TORSH_ROUND"]
pause, stubborn = float(sys.argv[1]), str(rank) in sys.argv[2]
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.closerange(0, 3)
        while True:
            time.sleep(60)
    os._exit(0)
def write(fd, name):
    number = 0
    while True:
        os.write(fd, f"{name} {attempt} {number} {'x' * (number * 7 % 190)}\\n".encode())
        number += 1
        time.sleep(pause)
threading.Thread(target=write, args=(2, "err"), daemon=True).start()
write(1, "out")
"""
LINE = re.compile(rb"(out|err) (\d+) (\d+) (x*)")
SAID = (b"torshrun: ", b"  ")
ALLOWED = {
    exit_codes.PREEMPTED,
    exit_codes.LOST,
    exit_codes.BUDGET_SPENT,
    *(128 + signo for signo in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)),
    *(-signo for signo in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)),  # before it listened
}
FAULTS = (
    [("worker", signo) for signo in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)]
    + [("agent", signo) for signo in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)]
    + [("agent", signal.SIGINT), ("agent", signal.SIGUSR1)]
    + [("keeper", signal.SIGKILL), ("keeper", signal.SIGSTOP)]
)


class Round:
    """One job and what is done to it."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        folder.mkdir()
        self.chance = chance
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.logs = folder / "logs"
        self.out, self.err = folder / "out", folder / "err"
        self.mark = os.urandom(8).hex()
        self.done: list[tuple[str, int]] = []
        self.guarded = False
        script = folder / "worker.py"
        script.write_text(WORKER)
        self.options = self._options()
        pause, stubborn = chance.choice(["0.0002", "0.01"]), chance.choice(["-", "1", "012"])
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "torshrun", *self.options, script, pause, stubborn],
                env={**os.environ, "MARK": self.mark, "TMPDIR": str(self.scratch)},
                stdout=out,
                stderr=err,
            )

    def _options(self) -> list[str]:
        chance = self.chance
        options = f"--nproc-per-node {WORKERS} --restart-backoff 0 --shutdown-timeout 0.5".split()
        options += ["--agent-timeout", str(AGENT_TIMEOUT)]
        options += ["--max-restarts", str(chance.choice([0, 1, 2]))]
        options += chance.choice([[], ["--log-dir", str(self.logs)]])
        return options + chance.choice([[], [], ["--pid-namespace"]])

    def keeper(self) -> list[int]:
        return [pid for pid, parent in marked(self.mark).items() if parent == self.process.pid]

    def workers(self) -> list[int]:
        keepers = self.keeper()
        return [pid for pid, parent in marked(self.mark).items() if parent in keepers]

    def strike(self) -> None:
        who, signo = self.chance.choice(FAULTS)
        pids = {"worker": self.workers, "keeper": self.keeper}.get(
            who, lambda: [self.process.pid]
        )()
        if not pids or self.process.poll() is not None:
            return
        if who == "agent" and signo == signal.SIGSTOP:
            self.guarded = bool(self.workers())
        self.done.append((who, signo))
        try:
            os.kill(self.chance.choice(pids), signo)
        except ProcessLookupError:
            self.done.pop()

    def finish(self) -> int:
        if ("agent", signal.SIGSTOP) in self.done:
            if self.guarded and ("keeper", signal.SIGSTOP) not in self.done:
                rest = {self.process.pid, *self.keeper()}
                assert soon(lambda: not set(self.workers()) - rest, AGENT_TIMEOUT + SLACK)
            self._signal(signal.SIGCONT)
        time.sleep(self.chance.random() * 0.3)
        self._signal(signal.SIGTERM)
        return self.process.wait(DEADLINE)

    def _signal(self, signo: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signo)

    def check(self, code: int) -> None:
        killed = ("agent", signal.SIGKILL) in self.done
        assert code in ALLOWED or (killed and code == -signal.SIGKILL), code
        assert soon(lambda: not marked(self.mark), SLACK), marked(self.mark)
        both = killed and any(who == "keeper" for who, _ in self.done)
        assert both or soon(lambda: not any(self.scratch.iterdir()), SLACK)
        interrupted = ("agent", signal.SIGINT) in self.done  # Python may say so
        shown = console_lines(self.out, killed, interrupted)
        shown |= console_lines(self.err, killed, interrupted)
        for (rank, name, attempt), numbers in shown.items():
            assert numbers == list(range(len(numbers))), (rank, name, attempt)
        if self.logs.exists():
            self._check_files(interrupted)

    def _check_files(self, interrupted: bool) -> None:
        for path in self.logs.glob("*/attempt_*/*/std*.log"):
            numbers = [int(match[3]) for match in map(LINE.fullmatch, whole_lines(path)) if match]
            assert numbers == list(range(len(numbers))), path
            assert interrupted or len(numbers) == len(whole_lines(path)), path


def whole_lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


def console_lines(
    path: Path, killed: bool, interrupted: bool
) -> dict[tuple[int, bytes, int], list[int]]:
    """Numbers of the lines by rank, stream and attempt; everything else must be the agent's."""
    numbers = defaultdict(list)
    *lines, last = path.read_bytes().split(b"\n")
    assert killed or not last, last
    for line in lines:
        match = re.fullmatch(rb"\[(\d)\] " + LINE.pattern, line)
        if match is None:
            assert interrupted or line.startswith(SAID), line
            continue
        assert len(match[5]) == int(match[4]) * 7 % 190, line
        numbers[int(match[1]), match[2], int(match[3])].append(int(match[4]))
    return numbers


def play(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    job = Round(folder, chance)
    try:
        for _ in range(chance.choice([1, 1, 2])):
            time.sleep(chance.random() * chance.choice([0.1, 0.4, 0.8]))
            job.strike()
        job.check(job.finish())
    except BaseException as error:
        error.add_note(f"TORSH_TEST_SEED={seed}: {' '.join(job.options)} {job.done}")
        raise
    finally:
        for pid in [*marked(job.mark), job.process.pid]:
            if job.process.poll() is None or pid != job.process.pid:
                kill(pid)
        job.process.wait(DEADLINE)


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def seeds(soak: bool) -> Sequence[int]:
    if "TORSH_TEST_SEED" in os.environ:
        return [int(os.environ["TORSH_TEST_SEED"])]
    return random.SystemRandom().sample(range(10**6), 300 if soak else 12)


def test_signals_to_anybody_at_any_moment(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for seed in seeds(bool(request.config.getoption("--soak"))):
        play(tmp_path / str(seed), seed)
