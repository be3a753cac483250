"""Runs a case of the corpus under a launcher, and keeps the launcher's output."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.corpus import Case

from benchmarks.corpus_stage import Stage, staged
from benchmarks.launchers import TORSHRUN
from benchmarks.processes import Program, started, wait_until

GRACE = 10.0
"""Seconds that a launcher has to start and to end, in addition to the case's own limit."""
_CLEARED = ("OMP_NUM_THREADS", "MASTER_", "TORCHELASTIC_", "PET_", "RANK", "WORLD_SIZE")
_SHUTDOWN = "5"
_KEPT_BYTES = 1 << 20
_MODULES = {"torshrun": "torshrun", "torchrun": "torch.distributed.run"}


@dataclass(frozen=True, slots=True)
class Said:
    """Holds the output of one node's agent."""

    code: int | None
    """The agent's exit code; None if it did not end in time."""
    stderr: str
    events: tuple[dict[str, Any], ...]
    """Events of torshrun, each with its facts as further keys."""


@dataclass(frozen=True, slots=True)
class Run:
    """Represents a job that is over."""

    nodes: tuple[Said, ...]
    seconds: float

    @property
    def hung(self) -> bool:
        """Return whether no agent ended in time."""
        return all(node.code is None for node in self.nodes)


def run(case: Case, launcher: str, hang_timeout: float) -> Run:
    """Run a case until all agents have ended or its time is over, and clean up.

    Raises UnavailableError if this machine lacks something that the case needs.
    """
    with (
        tempfile.TemporaryDirectory(prefix="torsh-corpus-") as name,
        staged(case, Path(name)) as stage,
    ):
        return _run(case, launcher, stage, hang_timeout)


def _run(case: Case, launcher: str, stage: Stage, hang_timeout: float) -> Run:
    began = time.monotonic()
    with ExitStack() as stack:
        agents = []
        for node in range(case.nnodes):
            command = stage.command(node, _agent(case, launcher, stage, node))
            program = Program(command, stage.folder / "work", _variables(stage, hang_timeout))
            errors = stack.enter_context(_stderr(stage, node).open("wb")).fileno()
            agents.append(stack.enter_context(started(program, stdout=errors, stderr=errors)))
        wait_until(
            lambda: all(agent.poll() is not None for agent in agents), case.seconds + GRACE, 0.05
        )
        codes = [agent.poll() for agent in agents]
    said = [_said(stage, node, code) for node, code in enumerate(codes)]
    return Run(tuple(said), time.monotonic() - began)


def _agent(case: Case, launcher: str, stage: Stage, node: int) -> list[str]:
    agent = [sys.executable, "-m", _MODULES[launcher], f"--nproc-per-node={case.nproc}"]
    agent += stage.meeting(node, case.nnodes)
    if launcher == TORSHRUN:
        agent += ["--events", str(_events(stage, node))]
    return [*_unset(), *agent, *case.options, str(case.path)]


def _unset() -> list[str]:
    """Return the command that removes the variables of this process's own job from a child's."""
    names = [name for name in os.environ if name.startswith(_CLEARED)]
    return ["env", *(f"--unset={name}" for name in names)]


def _variables(stage: Stage, hang_timeout: float) -> dict[str, str]:
    return {
        "TMPDIR": str(stage.folder / "tmp"),
        "TORSH_HANG_TIMEOUT": f"{hang_timeout:g}",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": _SHUTDOWN,
        **stage.variables,
    }


def _stderr(stage: Stage, node: int) -> Path:
    return stage.folder / f"stderr-{node}"


def _events(stage: Stage, node: int) -> Path:
    return stage.folder / f"events-{node}"


def _said(stage: Stage, node: int, code: int | None) -> Said:
    text = _stderr(stage, node).read_bytes()[-_KEPT_BYTES:].decode(errors="replace")
    path = _events(stage, node)
    lines = path.read_text().splitlines() if path.exists() else []
    return Said(code, text, tuple(map(json.loads, lines)))
