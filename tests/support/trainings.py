"""Jobs of several nodes whose workers keep their processes when others are lost."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from support.launcher import Launcher
from support.nodes import QUICK, Job, Node
from support.processes import soon

SCRIPT = str(Path(__file__).with_name("recovering.py"))
EACH = 2
"""Number of workers of a node."""
MOST = 6
"""The budget of restarts."""
STEP = re.compile(r"step (\d+) (.+)")
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
    """Nodes that train together; `pause` is how long a step takes at least."""

    def __init__(
        self,
        launcher: Launcher,
        nodes: int,
        steps: int,
        *losses: str,
        least: int = 0,
        etcd: str = "",
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
        self._argv = (SCRIPT, "nn", str(steps), *losses)
        for _ in range(nodes):
            self.start()

    def start(self) -> Node:
        node = self.job.start(*self._argv)
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

    def present(self, number: int) -> list[int]:
        return [pid for pid in self.pids(number) if Path(f"/proc/{pid}").exists()]

    def end(self, *killed: int) -> tuple[Outcome, list[str]]:
        """What was printed, once all nodes but these have ended well."""
        outputs = []
        for number, node in enumerate(self.job.nodes):
            code, output = node.end(100)
            assert code == (-signal.SIGKILL if number in killed else 0), output
            outputs.append(output)
        return outcome(outputs), outputs


def kill(pids: list[int], signo: int = signal.SIGKILL) -> None:
    for pid in pids:
        os.kill(pid, signo)
