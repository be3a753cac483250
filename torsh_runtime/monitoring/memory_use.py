"""What memory this process takes, and for what."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
import time
import tracemalloc
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torsh_runtime.monitoring.marks import Marks

_KIB = re.compile(rb"^(\w+):\s+(\d+) kB", re.MULTILINE)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_OURS = re.compile(rb"/(memfd:)?torsh")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What memory a process takes, in bytes; None is unknown."""

    rss: int
    """What is resident, with all that it shares with other processes."""
    pss: int | None
    """The same, where shared memory counts by its part of those that share it: over all ranks this
    is what the job takes."""
    peak: int
    """The largest rss so far; with memory_profiling since the last section began or ended."""
    shared: int
    """Mapped memory of our own that ranks of the node share, whether it is resident or not."""
    growth: int
    """Of rss, since the library was first asked."""
    allocators: Mapping[str, int]
    """What is in use of: "malloc" (with the arrays of numpy, and of torch on CPUs), "python" (only
    while tracemalloc traces), "torch.cuda" and "cupy" (of this process's current GPU)."""


def memory() -> MemoryUse:
    """This process's now. It takes about a millisecond."""
    rss = resident()
    return MemoryUse(
        rss=rss,
        pss=proportional(),
        peak=_status_bytes(b"VmHWM") or rss,
        shared=_shared(),
        growth=rss - _first(),
        allocators=_allocators(),
    )


def resident() -> int:
    """Bytes that are resident: some microseconds."""
    with Path("/proc/self/statm").open("rb", buffering=0) as file:
        return int(file.read().split()[1]) * _PAGE


def proportional() -> int | None:
    """PSS; None if the kernel does not tell it."""
    try:
        rollup = Path("/proc/self/smaps_rollup").read_bytes()
    except OSError:
        return None
    return next((int(kib) << 10 for name, kib in _KIB.findall(rollup) if name == b"Pss"), None)


@cache
def _first() -> int:
    return resident()


def _status_bytes(name: bytes) -> int:
    found = dict(_KIB.findall(Path("/proc/self/status").read_bytes()))
    return int(found.get(name, 0)) << 10


def _shared() -> int:
    """Of the files that the library makes for memory, each once."""
    sizes: dict[bytes, int] = {}
    for line in Path("/proc/self/maps").read_bytes().splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[1].endswith(b"s") and _OURS.match(words[5]):
            begin, end = (int(each, 16) for each in words[0].split(b"-"))
            file = words[3] + words[4]
            sizes[file] = max(sizes.get(file, 0), int(words[2], 16) + end - begin)
    return sum(sizes.values())


def _allocators() -> dict[str, int]:
    found = {"malloc": _malloc()}
    if tracemalloc.is_tracing():
        found["python"] = tracemalloc.get_traced_memory()[0]
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    with suppress(Exception):  # of a GPU in whatever state
        if torch is not None and torch.cuda.is_initialized():
            found["torch.cuda"] = torch.cuda.memory_allocated()
    with suppress(Exception):
        if cupy is not None:
            found["cupy"] = cupy.get_default_memory_pool().used_bytes()
    return {name: size for name, size in found.items() if size is not None}


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _malloc() -> int | None:
    """None with another library than glibc from 2.33 on."""
    library: Any = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _Mallinfo
    told = library.mallinfo2()
    return int(told.uordblks + told.hblkhd)


class SectionMemory:
    """By how much the resident memory grew, at most, within sections: noted as the scalar
    "memory/<section>" when one ends, and the PSS as "memory/pss" at steps, once a second."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._lock = threading.Lock()
        self._inside: list[list[Any]] = []
        self._stepped = 0.0

    def begin(self, name: str, thread: int) -> None:
        """A section begins, in that thread."""
        with self._lock:
            self._look()
            now = resident()
            self._inside.append([thread, name, now, now])

    def end(self, name: str, thread: int) -> None:
        """It ends."""
        with self._lock:
            self._look()
            for place in reversed(range(len(self._inside))):
                if self._inside[place][:2] == [thread, name]:
                    _, _, begun, peak = self._inside.pop(place)
                    self._marks.scalar(f"memory/{name}", max(peak - begun, 0))
                    return

    def step(self, number: int) -> None:
        """A step begins."""
        del number
        now = time.monotonic()
        if now - self._stepped < 1:
            return
        self._stepped = now
        pss = proportional()
        self._marks.scalar("memory/rss", resident())
        if pss is not None:
            self._marks.scalar("memory/pss", pss)

    def _look(self) -> None:
        """Let all sections that are open know the peak since the last look."""
        peak = max(_status_bytes(b"VmHWM"), resident())
        for each in self._inside:
            each[3] = max(each[3], peak)
        with suppress(OSError), Path("/proc/self/clear_refs").open("w") as file:
            file.write("5")  # begin with another peak
