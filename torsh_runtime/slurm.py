"""What Slurm tells the tasks of a job step: which nodes it has, and how many tasks on each.

Only SLURM_STEP_* count. A batch script has SLURM_NNODES and SLURM_NTASKS of its whole job as well,
and SLURM_PROCID=0, although it is one process on the first node.
"""

from __future__ import annotations

import os
import re
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torsh_runtime.errors import ConfigError


class Reply(NamedTuple):
    """What `scontrol` with some words has answered."""

    text: str
    """What it has printed; "" if it is not there, failed or took too long."""
    error: str = ""
    """Why, in a line for people; "" if it succeeded."""


Scontrol = Callable[..., Reply]
_SCONTROL_SECONDS = 8.0
_INTERACTIVE_STEP = str(0xFFFFFFFA)  # salloc's, by LaunchParameters=use_interactive_step
_MOST = 65536  # nodes or tasks; more than any Slurm has, and a text that is no bomb
_PORTS = range(15000, 31000)
"""Below those that systems give to outgoing connections, and above those that services have."""
_ITEM = re.compile(r"(?:[^\[\],\s]|\[[0-9,-]+\])+")
_RANGES = re.compile(r"\[([0-9,-]+)\]")


class Step(NamedTuple):
    """A job step, as one of its tasks sees it."""

    job: str
    """SLURM_JOB_ID, and so the same after a requeue; another one for each task of an array."""
    number: str
    """Of the step within its job."""
    nodelist: str
    """Its nodes in Slurm's notation, in the order of their ranks: "n[1-2,7]"."""
    tasks: tuple[int, ...]
    """How many each node has."""
    node_rank: int
    rank: int
    """Among all tasks."""
    local_rank: int
    """Among those of this node."""

    @property
    def name(self) -> str:
        """Names what runs in it: the same for all its tasks, and for the step that takes its place
        when the job is requeued."""
        return f"slurm-{self.job}.{self.number}"

    @property
    def world_size(self) -> int:
        return sum(self.tasks)


def step(environ: Mapping[str, str]) -> Step | None:
    """The step that has started this process, if one has; what is called in an interactive shell is
    one process, whatever the shell's step has. ConfigError if Slurm's variables cannot be.
    """
    if not environ.get("SLURM_JOB_ID") or not environ.get("SLURM_STEP_NUM_NODES"):
        return None
    if in_shell(environ):
        return None
    found = Step(
        job=environ["SLURM_JOB_ID"],
        number=environ.get("SLURM_STEP_ID", "0"),
        nodelist=environ.get("SLURM_STEP_NODELIST", ""),
        tasks=_tasks(environ, "SLURM_STEP_TASKS_PER_NODE"),
        node_rank=_number(environ, "SLURM_NODEID"),
        rank=_number(environ, "SLURM_PROCID"),
        local_rank=_number(environ, "SLURM_LOCALID"),
    )
    nodes = _number(environ, "SLURM_STEP_NUM_NODES")
    if len(found.tasks) != nodes or not found.node_rank < nodes or found.rank >= found.world_size:
        told = {name: value for name, value in environ.items() if name.startswith("SLURM_STEP_")}
        raise ConfigError(
            f"Slurm's variables contradict each other (SLURM_NODEID={found.node_rank}, "
            f"SLURM_PROCID={found.rank}, {told}): has somebody changed or inherited some of them?"
        )
    return found


def in_shell(environ: Mapping[str, str]) -> bool:
    """Whether this process was called in a shell that salloc or `srun --pty` has started, and not
    by srun itself: steps within such a shell inherit SLURM_PTY_PORT, but not its terminal.
    """
    if environ.get("SLURM_STEP_ID") == _INTERACTIVE_STEP:
        return True
    task = environ.get("SLURM_TASK_PID", "")
    if "SLURM_PTY_PORT" not in environ or not re.fullmatch(r"[0-9]{1,9}", task):
        return False
    with suppress(OSError):
        group, _, terminal = Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()[2:5]
        # A shell with job control gives what it calls a process group; a script's is the task's.
        return terminal != "0" and int(group) != os.getpgrp()
    return False


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ConfigError(f"{name}={text!r} is not what Slurm sets in a job step: a number")
    return int(text)


def _tasks(environ: Mapping[str, str], name: str) -> tuple[int, ...]:
    try:
        return counts(environ.get(name, ""))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def counts(text: str) -> tuple[int, ...]:
    """Tasks per node, from Slurm's notation: "4(x2),2" is (4, 4, 2). ConfigError."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part)
        if match is None or len(found) + int(match[2] or 1) > _MOST:
            raise ConfigError(f"{text!r} is not a list of tasks per node, like 4(x2),2")
        found += [int(match[1])] * int(match[2] or 1)
    return tuple(found)


def hosts(nodelist: str) -> list[str]:
    """The names in Slurm's notation: "n[1-2,07],login" is n1, n2, n07, login. ConfigError."""
    names: list[str] = []
    if ",".join(_ITEM.findall(nodelist)) != nodelist:
        raise ConfigError(f"{nodelist!r} is not a list of nodes, like n[1-2,7],login")
    for item in _ITEM.findall(nodelist):
        names += _expanded(item, _MOST - len(names))
    return names


def _expanded(item: str, most: int) -> list[str]:
    """With several brackets the last one counts fastest, as scontrol has it."""
    names = [""]
    for place, part in enumerate(_RANGES.split(item)):
        endings = [*_numbers(part)] if place % 2 else [part]
        if len(names) * len(endings) > most:
            raise ConfigError(f"{item!r} names more than {_MOST} nodes")
        names = [name + ending for name in names for ending in endings]
    return names


def _numbers(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if match is None:
            raise ConfigError(f"[{ranges}] is not a list of numbers and ranges, like [1-2,7]")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < _MOST:
            raise ConfigError(f"[{ranges}] has the range {part}, which is too long or backwards")
        yield from (f"{number:0{len(match[1])}}" for number in range(first, last + 1))


def first_host(nodelist: str, scontrol: Scontrol) -> str:
    """Where the first node can be reached: the address that Slurm itself uses, as names of nodes
    need not be known to anything but Slurm; its name where Slurm cannot be asked. ConfigError.
    """
    names = scontrol("show", "hostnames", nodelist).text.split() or hosts(nodelist)
    if not names:
        raise ConfigError("Slurm's list of nodes is empty")
    told = scontrol("--oneliner", "show", "node", names[0])
    address = re.search(r"\bNodeAddr=(\S+)", told.text)
    return address[1] if address else names[0]


def port(name: str) -> int:
    """The TCP port at which what is so named meets, the same on all nodes without their asking."""
    return _PORTS[zlib.crc32(name.encode()) % len(_PORTS)]


def scontrol(*words: str) -> Reply:
    """Ask the real one, which is to write times as it does by itself."""
    try:
        done = subprocess.run(
            ["scontrol", *words],
            env={**os.environ, "SLURM_TIME_FORMAT": "standard"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SCONTROL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Reply("", f"scontrol has not answered in {_SCONTROL_SECONDS:g} s")
    except OSError as error:
        return Reply("", f"scontrol cannot be started: {error.strerror}")
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        return Reply("", said or f"scontrol has ended with {done.returncode}")
    return Reply(done.stdout.decode(errors="replace"))
