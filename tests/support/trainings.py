"""Jobs of several nodes whose workers keep their processes when others are lost."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from support.forked_scripts import printed_by_ranks
from support.hosts import Host
from support.launcher import Launcher
from support.nodes import QUICK, Job, Node
from support.processes import soon

SCRIPT = str(Path(__file__).with_name("recovering.py"))
BATCH, SAMPLES = 12, 60
"""The script's."""
PATIENT = "last_call_timeout=0.5,ttl=4,join_timeout=120,close_timeout=5"
"""For nodes that may be cut off from the store for a while."""
TOGETHER = "last_call_timeout=30,ttl=3,join_timeout=30,close_timeout=5"
"""Has the first round wait for all nodes, so that each has copies of another one's parts."""
EACH = 2
"""Number of workers of a node."""
MOST = 6
"""The budget of restarts."""
STEP = re.compile(r"step (\d+) (.+)")
BEGINS = re.compile(r"begins (\d+)")
START = re.compile(r"start (\d+) (\d+) (\d+)")
END = re.compile(r"end (\d+) (\d+) (\S+)")


class Outcome(NamedTuple):
    """What the ranks of a job have printed."""

    pids: Mapping[int, list[int]]
    steps: Mapping[int, frozenset[str]]
    """What was committed in each step."""
    totals: frozenset[str]
    last: Mapping[int, int]
    """The process that came to the end, by rank."""


def outcome(outputs: list[str]) -> Outcome:
    out = "\n".join(re.sub(r"^\[\d+\] ", "", line) for each in outputs for line in each.split("\n"))
    pids: dict[int, list[int]] = {}
    for rank, pid, _ in START.findall(out):
        pids.setdefault(int(rank), []).append(int(pid))
    # A report repeats the last lines of who was lost, behind "| ".
    steps: dict[int, set[str]] = {}
    for line in out.split("\n"):
        if found := STEP.fullmatch(line):
            steps.setdefault(int(found[1]), set()).add(found[2])
    ends = END.findall(out)
    return Outcome(
        {rank: [*dict.fromkeys(each)] for rank, each in pids.items()},
        {step: frozenset(each) for step, each in steps.items()},
        frozenset(total for _, _, total in ends),
        {int(rank): int(pid) for rank, pid, _ in ends},
    )


class Training:
    """Nodes that train together; `pause` is how long a step takes at least. `begin` of them are
    started at first; 0 is all."""

    def __init__(
        self,
        launcher: Launcher,
        nodes: int,
        steps: int,
        *losses: str,
        least: int = 0,
        etcd: str = "",
        kind: str = "nn",
        hosts: Sequence[Host] = (),
        begin: int = 0,
        **more: str,
    ) -> None:
        launcher.environ |= {"PAUSE": more.pop("pause", "0")}
        options = [f"--nproc-per-node={EACH}", f"--max-restarts={MOST}"]
        options += [f"--{name.replace('_', '-')}={value}" for name, value in more.items()]
        nnodes = f"{least or nodes}:{nodes}"
        self.job = Job.over_tcp(launcher, nnodes, *options)
        if etcd:
            meet = ("--rdzv-backend=etcd", f"--rdzv-endpoint={etcd}", f"--rdzv-conf={QUICK}")
            self.job = Job(launcher, f"--nnodes={nnodes}", *meet, *options)
        if hosts:  # in the order in which nodes are started there; the first has the store
            launcher.environ |= {"TORSH_SECRET": launcher.mark}
            meet = ("--rdzv-backend=tcp", f"--rdzv-endpoint={hosts[0].ipv4}:29400")
            self.job = Job(
                launcher, f"--nnodes={nnodes}", *meet, f"--rdzv-conf={PATIENT}", *options
            )
        self._hosts = hosts
        self._argv = (SCRIPT, kind, str(steps), *losses)
        for _ in range(begin or nodes):
            self.start()

    def start(self) -> Node:
        place = self._hosts[len(self.job.nodes)].command if self._hosts else ()
        node = self.job.start(*self._argv, within=place)
        node.wait_for("waiting for the job's nodes|round|maximum")
        return node

    def pids(self, number: int) -> list[int]:
        """The processes that ever began on a node."""
        found = START.findall(self.job.nodes[number].output)
        return [*dict.fromkeys(int(pid) for _, pid, _ in found)]

    def wait_until_it_trains(self, *nodes: int, starts: int = EACH) -> None:
        for number in nodes or range(len(self.job.nodes)):
            node = self.job.nodes[number]
            assert soon(lambda: len(self.pids(number)) >= starts, 40), node.output  # noqa: B023
        time.sleep(0.3)

    def wait_until_all_begin(self, step: int) -> None:
        """Wait until all workers of all nodes have begun this step, which keeps its state."""
        for node in self.job.nodes:
            begun = f"begins {step}\n"
            assert soon(lambda: node.output.count(begun) >= EACH, 60), node.output  # noqa: B023

    def repeats(self, number: int) -> list[int]:
        """The steps that a node's workers have begun more often than once each."""
        begun = Counter(map(int, BEGINS.findall(self.job.nodes[number].output)))
        return sorted(step for step, times in begun.items() if times > EACH)

    def present(self, number: int) -> list[int]:
        return [pid for pid in self.pids(number) if Path(f"/proc/{pid}").exists()]

    def end(self, *killed: int) -> tuple[Outcome, list[str]]:
        """What was printed, once all nodes but these have ended well."""
        outputs = []
        for number, node in enumerate(self.job.nodes):
            code, output = node.end(300)
            assert code == (-signal.SIGKILL if number in killed else 0), output
            outputs.append(output)
        return outcome(outputs), outputs


Trainings = Callable[..., Training]


@contextmanager
def trainings(launcher: Launcher) -> Iterator[Trainings]:
    """A function that starts trainings, which end with the block."""
    with ExitStack() as jobs:

        def start(*arguments: Any, **options: Any) -> Training:
            training = Training(launcher, *arguments, **options)
            jobs.enter_context(training.job)
            return training

        yield start


def kill(pids: list[int], signo: int = signal.SIGKILL) -> None:
    for pid in pids:
        os.kill(pid, signo)


def worlds(found: Outcome) -> list[int]:
    """The number of ranks of each step, which follows from the parts of its batch."""
    assert sorted(found.steps) == [*range(len(found.steps))]
    sizes = [{len(told.split()) - 1 for told in found.steps[step]} for step in sorted(found.steps)]
    assert all(len(each) == 1 for each in sizes), "a step was committed by two worlds"
    return [BATCH // each.pop() for each in sizes]


def undisturbed(folder: Path, sizes: list[int], kind: str) -> Outcome:
    """What jobs of these sizes do that stop and resume from a file where the size changes."""
    outputs, begin = [], 0
    state = folder / "state"
    while begin < len(sizes):
        same = next((n for n in range(begin, len(sizes)) if sizes[n] != sizes[begin]), len(sizes))
        environ = {"END": str(state)} | ({"BEGIN": str(state)} if begin else {})
        outputs += alone(folder, sizes[begin], kind, same, environ)
        begin = same
    steps = outcome(outputs).steps
    return Outcome({}, steps, outcome(outputs[-sizes[-1] :]).totals, {})


def alone(
    folder: Path, ranks: int, kind: str, steps: int, environ: Mapping[str, str] | None = None
) -> list[str]:
    """What each rank prints of a training that loses nobody, without an agent."""
    loads = ["torsh_runtime.nn", "torsh_runtime.optim", "torsh_runtime.elastic"]
    if kind.startswith("torch"):
        loads += ["torch._dynamo", "torsh_runtime.integrations.torch"]
    told = {"TORCHELASTIC_RESTART_COUNT": "0", **(environ or {})}
    argv = (kind, str(steps))
    return printed_by_ranks(Path(SCRIPT), ranks, *argv, folder=folder, loads=loads, environ=told)


def check_as_undisturbed(found: Outcome, folder: Path, kind: str = "nn") -> list[int]:
    """Check that the job did what jobs of its sizes do; return these, each once in a row."""
    sizes = worlds(found)
    expected = undisturbed(folder, sizes, kind)
    for step, told in found.steps.items():
        wrong = f"step {step} was committed with two contents: {told} is not {expected.steps[step]}"
        assert told <= expected.steps[step], wrong
    assert found.totals == expected.totals
    check_samples(expected)
    return changes(sizes)


def changes(sizes: list[int]) -> list[int]:
    """These numbers of ranks, each once in a row."""
    return [size for n, size in enumerate(sizes) if n == 0 or sizes[n - 1] != size]


def check_samples(found: Outcome) -> None:
    """Check that each sample was taken once in each epoch."""
    for first in range(0, len(found.steps) - SAMPLES // BATCH + 1, SAMPLES // BATCH):
        epoch = [found.steps[step] for step in range(first, first + SAMPLES // BATCH)]
        taken = [index for step in epoch for told in step for index in told.split()[:-1]]
        assert sorted(map(int, taken)) == [*range(SAMPLES)], "a sample was lost, or taken twice"
