"""Plays a worker's part in a scene of benchmarks/front_ends.py, as a script for launchers."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

LONG = 600.0
LIMIT = 1 << 30  # bytes beyond what is mapped already


def play(scene: str, folder: Path, rank: int) -> None:
    """Play a scene. Its event happens to rank 1; the other rank waits, as in a collective."""
    if scene == "preempted":
        signal.signal(signal.SIGTERM, lambda signo, frame: save(folder, rank, signo, frame))
    ready(folder, rank)
    if scene == "runs":
        return
    if rank == 1 and scene == "raises":
        raise ValueError("bad batch")
    if rank == 1 and scene == "oom":
        exhaust()
    time.sleep(LONG)


def ready(folder: Path, rank: int) -> None:
    """Report this rank's process id."""
    unfinished = folder / f"unfinished{rank}"
    unfinished.write_text(str(os.getpid()))
    unfinished.replace(folder / f"ready{rank}")


def save(folder: Path, rank: int, _signo: int, _frame: FrameType | None) -> None:
    (folder / f"saved{rank}").touch()
    raise SystemExit(0)


def exhaust() -> None:
    """Allocate memory until there is none left."""
    import resource

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + LIMIT, mapped + LIMIT))
    kept = []
    while True:
        kept.append(bytearray(LIMIT // 8))


if __name__ == "__main__":
    play(sys.argv[1], Path(sys.argv[2]), int(os.environ["RANK"]))
