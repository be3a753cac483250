"""Signals to agent, keeper, workers or standbys at random moments of random jobs.

Whatever happens, the job ends in time and with a code that the documentation allows for it, no
process and no temporary file is left, and no line of output is torn, lost or written twice. A short
form runs with the other tests, 300 rounds with `--soak`. The seed of a round that fails is shown;
TORSH_TEST_SEED makes it the first.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from support.numbered import OWN_CODE, WORKER, Counts, count_lines
from support.processes import is_parked, marked, soon

from torshrun import exit_codes

WORKERS = 3
GRACE = 0.5
AGENT_TIMEOUT = 3.0
"""Longer than the agent may have to wait for a processor of a loaded machine."""
SLACK = 10.0
"""Seconds beyond what is configured that a loaded machine may take."""
KEEPER_STOPPED = 30.0
"""Seconds after which a stopped keeper has been given up, wherever the agent waits for it."""
Target = Literal["agent", "keeper", "worker", "standby"]
"""standby: any process that waits to be a worker, or imports for those that do."""
SIGNALS: dict[Target, tuple[signal.Signals, ...]] = {
    "agent": (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1),
    "keeper": (*3 * [signal.SIGKILL], signal.SIGSTOP),
    "worker": (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1),
    "standby": (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1),
}
MODULES = "json,asyncio,decimal"


@dataclass(frozen=True)
class Fault:
    """A signal to one of the job's processes."""

    target: Target
    signo: signal.Signals
    after: float
    """Seconds since the job's start, or since the fault before."""

    def is_(self, target: Target, *signals: signal.Signals) -> bool:
        return self.target == target and self.signo in signals


@dataclass(frozen=True)
class Plan:
    """What one round is about."""

    faults: tuple[Fault, ...]
    restarts: int
    namespace: bool
    log_dir: bool
    merged: bool
    """Whether stdout and stderr are the same file."""
    seconds: float
    """How long each worker runs; 0 is until it is stopped."""
    lines: int
    pause: float
    """Seconds between lines."""
    daemon: bool
    """Whether each worker leaves a process in a session of its own."""
    stubborn: tuple[int, ...]
    """Ranks that ignore SIGTERM."""
    fails: bool
    """Whether rank 1 fails at its first end."""
    preload: bool
    """Whether workers are forks, and others wait for a restart."""

    @property
    def options(self) -> list[str]:
        return [
            *("--nproc-per-node", str(WORKERS), "-t", "3", "--restart-backoff", "0"),
            *("--max-restarts", str(self.restarts), "--shutdown-timeout", str(GRACE)),
            *("--agent-timeout", str(AGENT_TIMEOUT)),
            *(["--pid-namespace"] if self.namespace else []),
            *(["--log-dir", "logs"] if self.log_dir else []),
            *(["--preload", MODULES] if self.preload else []),
        ]

    @property
    def worker(self) -> str:
        names = ("seconds", "lines", "pause", "daemon", "stubborn", "fails")
        return json.dumps({name: getattr(self, name) for name in names})


def draw(chance: random.Random, namespaces: bool) -> Plan:
    """A round at random."""
    fast, preload = chance.random() < 0.5, chance.random() < 0.5
    return Plan(
        faults=draw_faults(chance, preload),
        preload=preload,
        restarts=chance.randrange(3),
        namespace=namespaces and chance.random() < 0.4,
        log_dir=chance.random() < 0.5,
        merged=chance.random() < 0.3,
        seconds=chance.choice([0, chance.random()]),
        lines=chance.choice([200, 3000]) if fast else 50,
        pause=0 if fast else 0.01,
        daemon=chance.random() < 0.5,
        stubborn=tuple(rank for rank in range(WORKERS) if chance.random() < 0.2),
        fails=chance.random() < 0.3,
    )


def draw_faults(chance: random.Random, preload: bool) -> tuple[Fault, ...]:
    targets = list(SIGNALS)
    wanted = 2 if chance.random() < 0.3 else 1
    while True:
        chosen = chance.choices(targets, [5, 2, 4, 6 if preload else 0], k=wanted)
        faults = [Fault(t, chance.choice(SIGNALS[t]), 1.6 * chance.random()) for t in chosen]
        # When both are dead nobody is left who could clean up, as is documented.
        agent_ends = any(f.target == "agent" and f.signo != signal.SIGSTOP for f in faults)
        if not (agent_ends and any(f.is_("keeper", signal.SIGKILL) for f in faults)):
            return tuple(faults)


class Round:
    """A job, what is done to it and what may come of that."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan = plan
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.mark = os.urandom(8).hex()
        self.inflicted: list[Fault] = []
        self.was_up = False
        (folder / "worker.py").write_text(WORKER)
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "torshrun"),
                    *plan.options,
                    "worker.py",
                    plan.worker,
                ],
                env={**kept, "MARK": self.mark, "TMPDIR": str(self.temporary)},
                cwd=folder,
                stdout=out,
                stderr=out if plan.merged else err,
            )

    def run(self) -> None:
        """Everything but the judgement."""
        for fault in self.plan.faults:
            self._inflict(fault)
        if self._agent_is_stopped():
            if not any(fault.target == "keeper" for fault in self.inflicted):
                left = self._of_workers
                assert soon(lambda: not left(), AGENT_TIMEOUT + SLACK), f"outlived it: {left()}"
            self.process.send_signal(signal.SIGCONT)
        if self._may_last():
            self._ask_to_end()
        try:
            self.process.wait(self._bound())
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self._tree()}") from None

    def clean(self) -> None:
        """Leave nothing to other tests, whatever happened."""
        self.process.kill()
        self.process.wait()
        for pid in marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # ---- faults

    def _inflict(self, fault: Fault) -> None:
        time.sleep(fault.after)
        self.was_up = self.was_up or b"\2" in self.text("out")
        soon(lambda: bool(self._victims(fault.target)) or self.process.poll() is not None, 2)
        victims = self._victims(fault.target)
        if victims and self.process.poll() is None:
            try:
                os.kill(random.choice(victims), fault.signo)
            except ProcessLookupError:
                return
            self.inflicted.append(fault)

    def _victims(self, target: Target) -> list[int]:
        agent = self.process.pid
        if target == "agent":
            return [agent]
        tree = marked(self.mark)
        keepers = [pid for pid, parent in tree.items() if parent == agent]
        if target == "keeper":
            return keepers
        ours = [pid for pid, parent in tree.items() if parent in keepers and leads_group(pid)]
        return [pid for pid in ours if is_parked(pid) == (target == "standby")]

    def _of_workers(self) -> list[int]:
        """Processes below the keeper."""
        agent = self.process.pid
        return [pid for pid, parent in marked(self.mark).items() if agent not in (pid, parent)]

    def _agent_is_stopped(self) -> bool:
        stopped = any(fault.is_("agent", signal.SIGSTOP) for fault in self.inflicted)
        return stopped and self.process.poll() is None

    def _may_last(self) -> bool:
        """Whether the job need not end by itself."""
        if self.exact() is not None:
            return self._goes_on()
        return not self.plan.seconds or any(f.signo == signal.SIGSTOP for f in self.inflicted)

    def _goes_on(self) -> bool:
        """Whether nothing of it ends the job, though a worker may stand still."""
        return all(
            fault.is_("worker", signal.SIGSTOP) or fault.target == "standby"
            for fault in self.inflicted
        )

    def _ask_to_end(self) -> None:
        """After time for what has to come first."""
        agent_stopped = any(fault.is_("agent", signal.SIGSTOP) for fault in self.inflicted)
        if soon(lambda: self.process.poll() is not None, 2.0 if agent_stopped else 0.3):
            return
        self.inflicted.append(Fault("agent", signal.SIGTERM, 0))
        self.process.terminate()

    def _bound(self) -> float:
        attempts = self.plan.restarts + 1
        keeper_stopped = any(f.is_("keeper", signal.SIGSTOP) for f in self.inflicted)
        configured = attempts * (self.plan.seconds + GRACE) + AGENT_TIMEOUT
        return configured + SLACK + (KEEPER_STOPPED if keeper_stopped else 0)

    # ---- what may come of it

    def allowed(self) -> set[int]:
        """The exit codes that the documentation allows."""
        single = self.exact()
        if single is not None:
            return {single}
        killed = [f for f in self.inflicted if f.signo != signal.SIGSTOP]
        hits = [f for f in killed if f.target == "worker"]
        # One that was just about to be taken was a worker when the signal came.
        hits += [f for f in killed if f.target == "standby"]
        failures = {OWN_CODE} if self.plan.fails else set()
        failures |= {128 + hit.signo for hit in hits}
        if any(hit.signo == signal.SIGINT for hit in hits):
            failures.add(1)  # Python, while it starts
        codes = {0} if self.plan.seconds else set()
        if len(hits) + self.plan.fails > self.plan.restarts:
            codes |= {exit_codes.BUDGET_SPENT} if self.plan.restarts else failures
        for fault in self.inflicted:
            codes |= self._codes_of(fault, failures)
        return codes

    def _codes_of(self, fault: Fault, failures: set[int]) -> set[int]:
        refused = {exit_codes.USAGE} if self.plan.namespace and not self.numbers() else set()
        if fault.target == "keeper":
            return {exit_codes.LOST} | refused
        if fault.target in ("worker", "standby"):
            return set()
        codes = {
            signal.SIGKILL: {-signal.SIGKILL},
            signal.SIGSTOP: {exit_codes.LOST},
            signal.SIGTERM: {exit_codes.PREEMPTED} | failures,
            signal.SIGINT: {128 + signal.SIGINT},
            signal.SIGUSR1: {exit_codes.PREEMPTED},
        }[fault.signo]
        # Before the agent listens it dies like any program, and Python, while it starts, of 1.
        return codes if self.numbers() else codes | {-fault.signo, 1}

    def exact(self) -> int | None:
        """The one code that is right when a single fault hit a job in the middle of its work."""
        plan, inflicted = self.plan, self.inflicted
        if plan.seconds or not self.was_up or len(plan.faults) > 1 or not inflicted:
            return None
        fault = inflicted[0]
        if fault.is_("keeper", signal.SIGKILL) or fault.is_("agent", signal.SIGSTOP):
            return exit_codes.LOST
        if fault.is_("agent", signal.SIGTERM, signal.SIGUSR1):
            return exit_codes.PREEMPTED
        if fault.is_("agent", signal.SIGINT):
            return 128 + signal.SIGINT
        if fault.is_("agent", signal.SIGKILL):
            return -signal.SIGKILL
        if self._goes_on():  # until it was asked to end
            return exit_codes.PREEMPTED
        if fault.is_("worker", signal.SIGKILL) and not plan.restarts:
            return 128 + signal.SIGKILL
        return None

    # ---- judgement

    def assert_all_is_well(self) -> None:
        code = self.process.returncode
        assert code in self.allowed(), (
            code,
            self.allowed(),
            self.inflicted,
            self.text("err")[-999:],
        )
        assert soon(lambda: not marked(self.mark)), f"left behind: {self._tree()}"
        assert soon(lambda: not self._scratch()), f"left behind: {self._scratch()}"
        self._assert_output()

    def _assert_output(self) -> None:
        """Console and files hold the same lines, and the files of every attempt are there."""
        console, files = self.numbers(), self._numbers_in_files()
        if self._agent_was_killed():
            assert all(count <= files[key] for key, count in console.items()), (console, files)
            return
        assert console == files
        attempts = sorted(folder.name for folder in self._logs("attempt_*"))
        if attempts:
            said = len(re.findall(rb": restarting (?:now|in)", self.text("out") + self.text("err")))
            assert attempts == [f"attempt_{number}" for number in range(said + 1)]
            assert len(list(self._logs("attempt_*/*/std*.log"))) == len(attempts) * WORKERS * 2

    def numbers(self) -> Counts:
        """How many lines the console has, by stream, rank and attempt."""
        cut = self._agent_was_killed()
        counts = count_lines(self.text("out"), rb"\[%d\] ", cut)
        for key, count in count_lines(self.text("err"), rb"\[%d\] ", cut).items():
            assert key not in counts, f"{key} came on both"
            counts[key] = count
        return counts

    def _numbers_in_files(self) -> Counts:
        counts = {}
        for path in self._logs("attempt_*/*/std*.log"):
            attempt, rank, name = path.parts[-3:]
            found = count_lines(path.read_bytes(), b"", self._agent_was_killed())
            key = (name.removesuffix(".log"), int(rank), int(attempt.removeprefix("attempt_")))
            assert set(found) <= {key}, f"in {path} there are {set(found)}"
            counts |= found
        return counts

    def _logs(self, pattern: str) -> Iterator[Path]:
        kept = "logs/*" if self.plan.log_dir else "tmp/torshrun-logs-*"
        return self.folder.glob(f"{kept}/{pattern}")

    def _scratch(self) -> list[str]:
        """What is left in the temporary directory, but for logs that were asked for."""
        names = os.listdir(self.temporary)
        return [name for name in names if not name.startswith("torshrun-logs-")]

    def _agent_was_killed(self) -> bool:
        return self.process.returncode == -signal.SIGKILL

    def text(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def _tree(self) -> list[str]:
        ps = ["ps", "-o", "pid,ppid,stat,wchan,args", "-p", ",".join(map(str, marked(self.mark)))]
        return subprocess.run(ps, capture_output=True, text=True).stdout.splitlines()


def leads_group(pid: int) -> bool:
    """Whether it is a worker, or about to become one, and not what workers leave."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


@pytest.fixture(scope="module")
def namespaces() -> bool:
    """Whether this machine lets a PID namespace be made."""
    command = [sys.executable, "-P", "-m", "torshrun", "--pid-namespace", "--no-python", "true"]
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def test_whatever_happens(tmp_path: Path, request: pytest.FixtureRequest, namespaces: bool) -> None:
    first = int(os.environ.get("TORSH_TEST_SEED", random.SystemRandom().randrange(10**6)))
    for seed in range(first, first + (300 if request.config.getoption("--soak") else 12)):
        plan = draw(random.Random(seed), namespaces)
        print(f"TORSH_TEST_SEED={seed} {plan}")  # shown when the test fails
        trial = Round(tmp_path / str(seed), plan)
        try:
            trial.run()
            trial.assert_all_is_well()
        finally:
            trial.clean()
