"""Finds what a copy of this process would lack, so that none can take its place."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import torch

_HARMLESS = ("torsh-", "TMonitor")
"""Beginnings of the names, or of those of the classes, of threads without which a copy does the
same: this package's, and that of tqdm."""
_ALONE = ("anon_inode:", "/memfd:", "/dev/shm/sem.")
"""Beginnings of the names of shared memory that holds nothing of a script."""


def problem(copy: int) -> str:
    """Return why no copy of this process can take its place; "" if one can.

    copy: the pid of the child that is a copy; 0 if there is none.
    """
    if torch.get_num_threads() > 1:
        return (
            f"it computes with {torch.get_num_threads()} threads, and a copy of a process has one: "
            f"set OMP_NUM_THREADS=1"
        )
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "it uses a GPU"
    if names := _threads():
        return f"it has the thread {names[0]!r}, which a copy lacks"
    if others := _children(copy):
        return f"it has the child process {others[0]!r}, such as a DataLoader's (num_workers=)"
    if name := _shared_memory():
        return f"it has the shared memory {name!r}, which a copy cannot have as it was"
    return _lack_of_memory()


def own_bytes() -> int:
    """Return how much memory this process has for itself."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def _threads() -> list[str]:
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    return [
        each.name
        for each in others
        if not each.name.startswith(_HARMLESS) and type(each).__name__ not in _HARMLESS
    ]


def _shared_memory() -> str:
    """Return the name of memory that this process and its copies would both write; "" if none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        _, mode, _, _, _, *names = line.split(maxsplit=5)
        name = names[0].removesuffix(" (deleted)") if names else "anonymous"
        is_shared = mode.startswith("rw") and mode.endswith("s")
        if is_shared and "/torsh-" not in name and not name.startswith(_ALONE):
            return re.sub(r"\d{3,}.*", "…", name)  # ranks say the same
    return ""


def _children(copy: int) -> list[str]:
    own = os.getpid()
    try:
        pids = Path(f"/proc/{own}/task/{own}/children").read_text().split()
    except OSError:  # a kernel without that file
        return []
    return [_name(pid) for pid in pids if int(pid) != copy and _runs(pid)]


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "ended"


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _lack_of_memory() -> str:
    """Return a problem if a copy, all of whose pages may come to differ, has no room."""
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(facts.get("MemAvailable", "0").split()[0]) << 10
    needed = own_bytes()
    if needed <= available:
        return ""
    return f"its memory, {needed >> 20} MiB, is more than is left for a copy, {available >> 20} MiB"
