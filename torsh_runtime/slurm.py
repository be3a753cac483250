"""Reads Slurm's description of a job step: its nodes, and the number of tasks on each.

Only SLURM_STEP_* are used. A batch script also has SLURM_NNODES and SLURM_NTASKS of its whole job,
and SLURM_PROCID=0, although it is a single process on the first node.
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
    """Holds the result of a call of `scontrol`."""

    text: str
    """The output on stdout; "" if scontrol is missing, failed or took too long."""
    error: str = ""
    """The reason of a failure, in a line for people; "" if it succeeded."""


Scontrol = Callable[..., Reply]
_SCONTROL_SECONDS = 8.0
_INTERACTIVE_STEP = str(0xFFFFFFFA)  # salloc's, by LaunchParameters=use_interactive_step
_MOST = 65536  # nodes or tasks; more than any cluster has, and few enough to expand safely
_PORTS = range(15000, 31000)
"""Ports below those that systems give to outgoing connections, and above those of services."""
_ITEM = re.compile(r"(?:[^\[\],\s]|\[[0-9,-]+\])+")
_RANGES = re.compile(r"\[([0-9,-]+)\]")


class Step(NamedTuple):
    """Describes a job step, as one of its tasks sees it."""

    job: str
    """SLURM_JOB_ID, which a requeue keeps; each task of an array has a different one."""
    number: str
    """Number of the step within its job."""
    nodelist: str
    """Nodes of the step in Slurm's notation, in the order of their ranks: "n[1-2,7]"."""
    tasks: tuple[int, ...]
    """Number of tasks on each node."""
    node_rank: int
    rank: int
    """Rank of this task among all tasks of the step."""
    local_rank: int
    """Rank of this task among those of its node."""

    @property
    def name(self) -> str:
        """Return a name for the step's program.

        It is equal for all tasks of the step, and for the step that replaces it after a requeue."""
        return f"slurm-{self.job}.{self.number}"

    @property
    def world_size(self) -> int:
        return sum(self.tasks)


def step(environ: Mapping[str, str]) -> Step | None:
    """Return the step that has started this process, or None.

    A process started in an interactive shell is on its own, whatever the shell's step has. Raises
    ConfigError if Slurm's variables are invalid or contradict each other.
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
    """Return whether this process was started in a shell of salloc or `srun --pty`.

    A process that srun itself has started within such a shell is not: steps inherit SLURM_PTY_PORT,
    but not the shell's terminal.
    """
    if environ.get("SLURM_STEP_ID") == _INTERACTIVE_STEP:
        return True
    task = environ.get("SLURM_TASK_PID", "")
    if "SLURM_PTY_PORT" not in environ or not re.fullmatch(r"[0-9]{1,9}", task):
        return False
    with suppress(OSError):
        group, _, terminal = Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()[2:5]
        # A shell with job control gives each command a process group; a script keeps the task's.
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
    """Return the tasks per node from Slurm's notation: "4(x2),2" is (4, 4, 2).

    Raises ConfigError if the text is malformed.
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part)
        if match is None or len(found) + int(match[2] or 1) > _MOST:
            raise ConfigError(f"{text!r} is not a list of tasks per node, like 4(x2),2")
        found += [int(match[1])] * int(match[2] or 1)
    return tuple(found)


def hosts(nodelist: str) -> list[str]:
    """Return the names from Slurm's notation: "n[1-2,07],login" is n1, n2, n07, login.

    Raises ConfigError if the text is malformed.
    """
    names: list[str] = []
    if ",".join(_ITEM.findall(nodelist)) != nodelist:
        raise ConfigError(f"{nodelist!r} is not a list of nodes, like n[1-2,7],login")
    for item in _ITEM.findall(nodelist):
        names += _expanded(item, _MOST - len(names))
    return names


def _expanded(item: str, most: int) -> list[str]:
    """Return the names of an item. Raises ConfigError if there are more than `most`.

    With several brackets the last one varies fastest, as in scontrol.
    """
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
    """Return the address of the first node that Slurm itself uses, or its name if scontrol fails.

    Names of nodes need not be known outside of Slurm. Raises ConfigError if the list is empty or
    malformed.
    """
    names = scontrol("show", "hostnames", nodelist).text.split() or hosts(nodelist)
    if not names:
        raise ConfigError("Slurm's list of nodes is empty")
    told = scontrol("--oneliner", "show", "node", names[0])
    address = re.search(r"\bNodeAddr=(\S+)", told.text)
    return address[1] if address else names[0]


def port(name: str) -> int:
    """Return the TCP port for a job of this name, which all nodes compute without communication."""
    return _PORTS[zlib.crc32(name.encode()) % len(_PORTS)]


def scontrol(*words: str) -> Reply:
    """Run scontrol with these arguments and its standard format of times, and return its output."""
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
