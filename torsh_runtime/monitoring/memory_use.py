"""Measures how much memory this process takes, and for what."""

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

from torsh_runtime.monitoring.marks import Marks

_PEAK = re.compile(rb"^VmHWM:\s+(\d+) kB\nVmRSS:\s+(\d+) kB$", re.MULTILINE)
_PSS = re.compile(rb"^Pss:\s+(\d+) kB$", re.MULTILINE)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_OURS = re.compile(rb"/(memfd:)?torsh")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Holds the memory of a process, in bytes; None is unknown.

    Example:
        ```python
        use = tr.monitoring.memory()
        print(f"{use.rss >> 20} MiB, at most {use.peak >> 20} MiB")
        ```
    """

    rss: int
    """Resident memory, with all that it shares with other processes."""
    pss: int | None
    """Resident memory in which shared memory counts by its part of those that share it. The sum
    over all ranks is what the job takes."""
    peak: int
    """The largest rss so far; with memory_profiling since the last section began or ended."""
    shared: int
    """Mapped memory of this library that ranks of the node share, whether it is resident or not."""
    growth: int
    """Growth of rss since the library was first asked."""
    allocators: Mapping[str, int]
    """Memory in use by allocator: "malloc" (with the arrays of numpy, and of torch on CPUs),
    "python" (only while tracemalloc traces), "torch.cuda" and "cupy" (of this process's current
    GPU)."""


def memory() -> MemoryUse:
    """Return the memory of this process now, in bytes. It takes about a millisecond.

    Example:
        ```python
        before = tr.monitoring.memory().rss
        model = make_model()
        print(tr.monitoring.memory().rss - before)
        ```
    """
    rss = resident()
    return MemoryUse(
        rss=rss,
        pss=proportional(),
        peak=_peak_and_present()[0],
        shared=_shared(),
        growth=rss - _first(),
        allocators=_allocators(),
    )


def resident() -> int:
    """Return the bytes that are resident. It takes some microseconds."""
    return int(_read("/proc/self/statm").split()[1]) * _PAGE


def proportional() -> int | None:
    """Return the PSS in bytes, or None if the kernel does not report it."""
    try:
        found = _PSS.search(_read("/proc/self/smaps_rollup"))
    except OSError:
        return None
    return None if found is None else int(found[1]) << 10


@cache
def _first() -> int:
    return resident()


def _shared() -> int:
    """Return the bytes of the files that the library makes for memory, each counted once."""
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
    with suppress(Exception):  # the GPU may be in any state
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
    """Return the bytes in use, or None with a library other than glibc 2.33 or later."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _Mallinfo
    told = library.mallinfo2()
    return int(told.uordblks + told.hblkhd)


class SectionMemory:
    """Notes by how much the resident memory grew, at most, within sections: as the scalar
    "memory/<section>" when one ends, and "memory/rss" and "memory/pss" at steps, once a second."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._lock = threading.Lock()
        self._inside: list[_Inside] = []
        self._stepped = float("-inf")

    def begin(self, name: str, thread: int) -> None:
        """Begin a section, in that thread."""
        with self._lock:
            now = self._look()
            self._inside.append(_Inside(thread, name, now, now))

    def end(self, name: str, thread: int) -> None:
        """End a section, and note its memory."""
        with self._lock:
            self._look()
            for place in reversed(range(len(self._inside))):
                inside = self._inside[place]
                if (inside.thread, inside.name) == (thread, name):
                    del self._inside[place]
                    self._marks.scalar(f"memory/{name}", max(inside.peak - inside.begun, 0))
                    return

    def step(self, number: int) -> None:
        """Note the process's memory, at most once a second."""
        del number
        now = time.monotonic()
        if now - self._stepped < 1:
            return
        self._stepped = now
        self._marks.scalar("memory/rss", resident())
        pss = proportional()
        if pss is not None:
            self._marks.scalar("memory/pss", pss)

    def _look(self) -> int:
        """Let all open sections know the peak since the last look. Return what is resident now."""
        peak, now = _peak_and_present()
        for each in self._inside:
            each.peak = max(each.peak, peak)
        with suppress(OSError):
            _write("/proc/self/clear_refs", b"5")  # begin with another peak
        return now


@dataclass(slots=True)
class _Inside:
    """Represents a section that is open."""

    thread: int
    name: str
    begun: int
    """Resident bytes when it began."""
    peak: int


def _peak_and_present() -> tuple[int, int]:
    """Return resident bytes: the peak since it was reset, and now."""
    found = _PEAK.search(_read("/proc/self/status"))
    if found is None:  # some sandboxes leave these lines out
        return resident(), resident()
    peak, now = (int(each) << 10 for each in found.groups())
    return max(peak, now), now


def _read(path: str) -> bytes:
    """Read a small file of the kernel; pathlib would take several times as long."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 16384)
    finally:
        os.close(descriptor)


def _write(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
