"""Small files of the kernel and of processes that may end, or lie, at any moment."""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")
MOST_CHILDREN = 16
"""Children of a process, and threads of each, that are asked what they wait for."""
_MOST_GENERATIONS = 16
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessStat(NamedTuple):
    """Holds what /proc/<pid>/stat says about a process."""

    name: str
    """Name of its program, cut off after 15 characters."""
    state: str
    """R, S, D, T (stopped), t (held by a debugger), Z and others."""
    parent: int
    cpu: float
    """Seconds of CPU that it has used, with those of children that it has waited for."""
    resident: int
    """Bytes of memory."""


def read_text(path: str | Path, limit: int = 1 << 20) -> str:
    """Return the first `limit` bytes of a regular file; "" if it cannot be read. Never waits."""
    try:
        with open(path, "rb", opener=open_at_once) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read(limit).decode("utf-8", "replace")
    except (OSError, ValueError):  # ValueError: a NUL in the name
        pass
    return ""


def read_number(path: str | Path) -> int | None:
    """Return the content of a file with one number that is not negative; None for anything else."""
    text = read_text(path).strip()
    return int(text) if text.isascii() and text.isdecimal() else None


def open_at_once(path: str, flags: int) -> int:
    """Open for open() without waiting: a pipe may never have a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_stat(pid: int) -> ProcessStat | None:
    """Return the state of the process; None if there is no such process."""
    text = read_text(f"/proc/{pid}/stat")
    name, _, rest = text.partition("(")[2].rpartition(")")  # the name itself may hold anything
    fields = rest.split()
    if len(fields) < 22:
        return None
    cpu, resident = sum(map(int, fields[11:15])) / _TICKS, int(fields[21]) * _PAGE
    return ProcessStat(name, fields[0], int(fields[1]), cpu, resident)


def start_time(pid: int) -> int | None:
    """Return when the process was started, in ticks since the machine was; None if it is gone."""
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else None


def rank_of(pid: int, ranks: Mapping[int, int]) -> int:
    """Return the rank of the worker that is this process or started it; -1 if there is none."""
    for _ in range(_MOST_GENERATIONS):
        stat = read_stat(pid) if pid > 1 and pid not in ranks else None
        if stat is None:
            break
        pid = stat.parent
    return ranks.get(pid, -1)


def handles(pid: int, signo: int) -> bool:
    """Return whether the process has a handler for the signal."""
    return _has_signal(pid, "SigCgt", signo)


def holds_back(pid: int, signo: int) -> bool:
    """Return whether the signal was sent to the process, which blocks it."""
    return _has_signal(pid, "ShdPnd", signo)


def _has_signal(pid: int, name: str, signo: int) -> bool:
    """Return whether the signal is in the set that the process' status has under this name."""
    text = read_text(f"/proc/{pid}/status")
    signals = re.search(rf"^{name}:\s*([0-9a-f]+)$", text, re.MULTILINE)
    return signals is not None and bool(int(signals[1], 16) >> (signo - 1) & 1)


def ended_badly(pid: int) -> list[tuple[str, int]]:
    """Return the names and statuses of programs of the process that have failed.

    These are its children that it has not reaped and whose status, as of waitpid, is not 0. The
    kernel shows them only to those who may trace them.
    """
    found = []
    for child in children(pid):
        name, _, rest = read_text(f"/proc/{child}/stat").partition("(")[2].rpartition(")")
        fields = rest.split()
        if len(fields) >= 50 and fields[0] == "Z" and fields[49] != "0":
            found.append((name, int(fields[49])))
    return found


UNREAD = "writes into a pipe that nobody reads"
"""Phrase for such a program in messages."""


def blocked_writers(pid: int) -> list[tuple[str, int]]:
    """Return the names and pids of programs of the process that wait to write into a pipe.

    Nobody reads what they write. The kernel shows this only to those who may trace them.
    """
    return [
        (stat.name, child)
        for child in children(pid)[:MOST_CHILDREN]
        if (stat := read_stat(child)) and any(map(_writes, _threads(child)[:MOST_CHILDREN]))
    ]


def _writes(task: str) -> bool:
    return read_text(f"{task}/wchan", 64).endswith("pipe_write")


def children(pid: int) -> list[int]:
    """Return the children of all its threads; none with a kernel without CONFIG_PROC_CHILDREN."""
    listed = (read_text(f"{task}/children") for task in _threads(pid))
    return [int(child) for line in listed for child in line.split()]


def _threads(pid: int) -> list[str]:
    """Return the folders of the threads; none of a process that is gone."""
    try:
        return [f"/proc/{pid}/task/{each}" for each in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds of the process and its descendants, and of reaped children."""
    return sum(stat.cpu for each in tree(pid) if (stat := read_stat(each)))


def tree(pid: int) -> Iterator[int]:
    """Yield the process, if it has a positive pid, and its descendants, parents first."""
    waiting = deque([pid] if pid > 0 else [])
    while waiting:
        yield waiting[0]
        waiting.extend(children(waiting.popleft()))


def listener(port: int) -> str:
    """Describe the process that listens on this port of this host, in words for a sentence."""
    name, pid = holder(port)
    return f"{name} (pid {pid})" if pid else name


def holder(port: int) -> tuple[str, int]:
    """Return the program and pid of the process that listens on this port of this host.

    If that is not known, return a description and pid 0.
    """
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN
            if listening and connection.laddr.port == port and connection.pid:
                return psutil.Process(connection.pid).name(), connection.pid
    except psutil.Error:
        return "another process", 0
    return "a process of another user or a connection", 0
