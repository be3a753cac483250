"""Agent, keeper or both die at random moments of rounds full of daemons: nobody is left.

A short form runs with the other tests; `--soak` runs ten times as many rounds.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import marked, soon

# Runs short rounds for ever: starts workers, which leave daemons, waits for some, stops them,
# sweeps. When it loses its keeper it kills what is left itself and ends.
AGENT = """
import os, random, select, signal, sys, time
from torshrun.workers import keeper as k
from torshrun.workers.processes import become_subreaper, kill_descendants
scratch, namespace, workers = sys.argv[1], sys.argv[2] == "namespace", int(sys.argv[3])
DAEMON = '''
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 10)
    os.setpgid(0, 0)
    os.fork()
    time.sleep(600)
time.sleep(600)
'''
SHELL = "setsid sh -c 'sleep 600 & exec sleep 600' <&- >&- 2>&- & exec sleep 600"
PROGRAMS = [[sys.executable, "-S", "-c", DAEMON], ["/bin/sh", "-c", SHELL]]
keeper = k.Keeper.start(scratch, namespace)
become_subreaper()

def end():
    left = kill_descendants(10)
    print("left" if left else "ended", *left, flush=True)
    raise SystemExit(bool(left))

def until(kind, count=1):
    while count > 0:
        flushed = keeper.flush()
        select.select([keeper], [] if flushed else [keeper], [], 10)
        for report in keeper.receive():
            if isinstance(report, k.Lost):
                end()
            count -= isinstance(report, kind)

print("keeper", keeper.pid, flush=True)
chance = random.Random()
number = 0
while True:
    for _ in range(workers):
        keeper.spawn(number, chance.choice(PROGRAMS), os.environ, "", (0, 1, 2))
        number += 1
    until(k.Spawned, chance.randrange(workers + 1))
    time.sleep(chance.random() * 0.1)
    keeper.signal(k.ALL, signal.SIGTERM)
    time.sleep(chance.random() * 0.02)
    keeper.sweep(number, 10)
    until(k.Swept)
"""


class Victims:
    """An agent and its keeper, whose descendants carry a mark."""

    def __init__(self, folder: Path, mode: str, workers: int = 4) -> None:
        self.mark = os.urandom(8).hex()
        self.scratch = folder / self.mark
        self.scratch.mkdir()
        self.agent = subprocess.Popen(
            [sys.executable, "-P", "-c", AGENT, str(self.scratch), mode, str(workers)],
            env={**os.environ, "MARK": self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.agent.stdout
        first = self.agent.stdout.readline()
        if "PID namespace" in first + ("" if "keeper" in first else self.agent.stdout.read()):
            pytest.skip(first)
        self.keeper = int(first.split()[1])

    def kill(self, who: str, chance: random.Random) -> None:
        """One of them, or both, in any order."""
        pids = {"agent": [self.agent.pid], "keeper": [self.keeper]}
        both = [self.agent.pid, self.keeper]
        chance.shuffle(both)
        if chance.random() < 0.5:  # so that none sees the other die
            for pid in pids.get(who, both):
                os.kill(pid, signal.SIGSTOP)
        for pid in pids.get(who, both):
            os.kill(pid, signal.SIGKILL)

    def assert_gone(self, scratch_too: bool) -> None:
        gone = soon(lambda: not marked(self.mark), 20)
        left = marked(self.mark)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        out, _ = self.agent.communicate(timeout=20)
        assert gone, (left, out)
        assert not scratch_too or soon(lambda: not self.scratch.exists())

    def assert_ended_by_itself(self) -> None:
        """The agent noticed that its keeper had died, and cleaned up after it."""
        out, _ = self.agent.communicate(timeout=20)
        assert (out, self.agent.returncode) == ("ended\n", 0)
        assert not marked(self.mark)


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    return 60 if request.config.getoption("--soak") else 6


@pytest.fixture
def chance() -> Iterator[random.Random]:
    seed = int(os.environ.get("TORSH_TEST_SEED", random.SystemRandom().randrange(10**6)))
    print(f"TORSH_TEST_SEED={seed}")  # shown when the test fails
    return random.Random(seed)


@pytest.mark.parametrize("mode", ["plain", "namespace"])
def test_nobody_outlives_the_agent(
    tmp_path: Path, rounds: int, chance: random.Random, mode: str
) -> None:
    for _ in range(rounds):
        victims = Victims(tmp_path, mode)
        time.sleep(chance.random() * 0.4)
        victims.kill("agent", chance)
        victims.assert_gone(scratch_too=True)


@pytest.mark.parametrize("mode", ["plain", "namespace"])
def test_nobody_outlives_the_keeper(
    tmp_path: Path, rounds: int, chance: random.Random, mode: str
) -> None:
    for _ in range(rounds):
        victims = Victims(tmp_path, mode)
        time.sleep(chance.random() * 0.4)
        victims.kill("keeper", chance)
        victims.assert_ended_by_itself()


def test_in_a_namespace_nobody_outlives_both(
    tmp_path: Path, rounds: int, chance: random.Random
) -> None:
    for _ in range(2 * rounds):
        victims = Victims(tmp_path, "namespace")
        time.sleep(chance.random() * 0.4)
        victims.kill("both", chance)
        victims.assert_gone(scratch_too=False)


@pytest.mark.parametrize("mode", ["plain", "namespace"])
def test_a_stopped_keeper_goes_on_when_its_agent_dies(
    tmp_path: Path, rounds: int, chance: random.Random, mode: str
) -> None:
    for _ in range(max(1, rounds // 5)):
        victims = Victims(tmp_path, mode)
        time.sleep(chance.random() * 0.4)
        os.kill(victims.keeper, signal.SIGSTOP)
        victims.kill("agent", chance)
        victims.assert_gone(scratch_too=True)


@pytest.mark.parametrize("mode", ["plain", "namespace"])
@pytest.mark.parametrize("who", ["agent", "keeper"])
def test_a_death_while_64_workers_are_started(
    tmp_path: Path, rounds: int, chance: random.Random, mode: str, who: str
) -> None:
    for _ in range(max(1, rounds // 5)):
        victims = Victims(tmp_path, mode, 64)
        time.sleep(chance.random() * 0.05)
        victims.kill(who, chance)
        if who == "keeper":
            victims.assert_ended_by_itself()
        else:
            victims.assert_gone(scratch_too=True)


@pytest.mark.parametrize("mode", ["plain", "namespace"])
def test_an_agent_that_is_killed_while_its_keeper_starts(
    tmp_path: Path, rounds: int, chance: random.Random, mode: str
) -> None:
    """The keeper is found by its name: nobody has reported its pid yet."""
    code = (
        "import sys\n"
        "from torshrun.workers.keeper import Keeper\n"
        "print('up', flush=True)\n"
        "while True:\n"
        f" Keeper.start(namespace={mode == 'namespace'}).close(10)\n"
    )
    mark = os.urandom(8).hex()
    for _ in range(2 * rounds):
        agent = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            env={**os.environ, "MARK": mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert agent.stdout
        agent.stdout.readline()
        time.sleep(chance.random() * 0.02)
        agent.kill()
        agent.communicate(timeout=10)
        assert soon(lambda: not marked(mark)), marked(mark)


FILES = 20_000
FILLS_THE_SCRATCH_DIRECTORY = f"""
import os
place = os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"])
for number in range({FILES}):
    os.close(os.open(f"{{place}}/{{number}}", os.O_CREAT | os.O_WRONLY))
print(place)
"""


def test_a_keeper_that_dies_while_it_removes_the_scratch_directory(tmp_path: Path) -> None:
    (tmp_path / "fill.py").write_text(FILLS_THE_SCRATCH_DIRECTORY)
    mark = os.urandom(8).hex()
    agent = subprocess.Popen(
        [sys.executable, "-P", "-m", "torshrun", str(tmp_path / "fill.py")],
        env={**os.environ, "MARK": mark, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert agent.stdout
        place = agent.stdout.readline().split()[-1]
        assert soon(lambda: len(os.listdir(place)) < FILES)
        [keeper] = [pid for pid, parent in marked(mark).items() if parent == agent.pid]
        os.kill(keeper, signal.SIGKILL)
        assert Path(place).exists(), "the keeper was faster"
        assert agent.wait(60) == 0
        assert not Path(place).exists()
    finally:
        agent.kill()
        agent.communicate()
