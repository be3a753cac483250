"""Runs one rank of stragglers.py: `stragglers_worker.py PLAN RESULT`, started by torshrun.

It works, and communicates with the others, in STEPS steps. From step SLOW_FROM on one rank is
slowed down.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import torsh_runtime as tr
from torsh_runtime.monitoring.analysis import Analysis
from torsh_runtime.monitoring.joining import Held

STEPS, SLOW_FROM = 96, 60
_FIRST = 6
"""First step that is measured, as the program warms up before."""
_DATA, _WORK = 0.005, 0.025  # seconds of a step
_MORE = 0.3  # times its own work
_SETTLES = 2  # steps
_BITS = 500e6
"""Bits per second of a slowed link."""
_NICE = 3
"""Niceness of the rival, with which the kernel gives it about a third of the processor."""


class Slowed:
    """Slows a rank down from begin() until end()."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        self.data = 0.0
        """Additional seconds in each section "data"."""
        self._rival: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        if self.cause == "data":
            self.data = _MORE * (_DATA + _WORK)
        elif self.cause == "quota":
            Path(os.environ["QUOTA_GROUP"], "cgroup.procs").write_text(f"{os.getpid()}\n")
        elif self.cause == "processor":
            busy = "while True: pass"
            self._rival = subprocess.Popen(["nice", "-n", str(_NICE), sys.executable, "-c", busy])
        elif self.cause == "link":
            words = f"qdisc replace dev cable root tbf rate {_BITS:.0f}bit burst 128kb latency 20ms"
            subprocess.run(["tc", *words.split()], check=True, timeout=10)

    def end(self) -> None:
        if self._rival:
            self._rival.kill()
            self._rival.wait()


def calibrated(seconds: float) -> Callable[[], None]:
    """Return a function that keeps a processor busy for `seconds` seconds if undisturbed."""
    array = np.ones(2048)

    def work(count: int) -> None:
        for _ in range(count):
            np.sqrt(array, out=array)

    times = []
    for _ in range(9):
        began = time.thread_time()
        work(1000)
        times.append(time.thread_time() - began)
    count = int(1000 * seconds / min(times))
    return lambda: work(count)


def train(plan: dict[str, Any]) -> list[float]:
    """Do the steps, and return when each of them started and when the last one ended."""
    rank = tr.get_rank()
    slowed = Slowed(plan["cause"] if rank == plan["rank"] else "")
    if plan["uses_processor"]:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % plan["processors"]]})
        work = calibrated(_WORK)
    else:

        def work() -> None:
            time.sleep(_WORK)

    array = np.ones(plan["elements"], np.float32)
    begun = []
    try:
        for step in range(STEPS):
            if step == SLOW_FROM:
                slowed.begin()
            tr.monitoring.step(step)
            begun.append(time.monotonic())
            with tr.monitoring.section("data"):
                time.sleep(_DATA + slowed.data)
            with tr.monitoring.section("forward"):
                work()
            tr.all_reduce(array)
        begun.append(time.monotonic())
    finally:
        slowed.end()
    tr.monitoring.step(STEPS)
    return begun


def of_steps(held: Held, first: int, end: int) -> Held:
    """Return the part of the record for these steps. One more note marks their end."""
    return held._replace(
        notes=[each for each in held.notes if each.kind != "step" or first <= each.value <= end]
    )


def main() -> None:
    plan, result = json.loads(sys.argv[1]), sys.argv[2]
    tr.init_process_group()
    begun = train(plan)
    records: list[Any] = [None] * tr.get_world_size()
    tr.all_gather_object(records, tr.monitoring.own_record())
    if tr.get_rank() == 0:
        slow = SLOW_FROM + _SETTLES
        late = {rank: of_steps(held, slow, STEPS) for rank, held in enumerate(records)}
        found: Analysis = tr.monitoring.analyse(late)
        before = (begun[SLOW_FROM] - begun[_FIRST]) / (SLOW_FROM - _FIRST)
        after = (begun[STEPS] - begun[slow]) / (STEPS - slow)
        told = {
            "truth": after / before,
            "whatif": found.speedup_without(plan["rank"]),
            "own": {rank: fmean(each.own for each in found.of_rank(rank)) for rank in late},
        }
        Path(result).write_text(json.dumps(told))
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
