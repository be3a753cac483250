"""Who waits for another rank leaves its processor before long to others that want it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from support.worlds import run_in_one_world

import torsh_runtime as tr

TURNS = 100
LATE = 3e-3
"""Seconds, more than a rank looks on for where nobody else wants its processor."""
MOST = 0.5e-3
"""Seconds of a processor that a wait may take: half of what it takes to look on all the time."""


def costs(waits: str, rank: int) -> float:
    """Seconds of a processor that this rank took for a wait, if it waited for the other, which came
    late each time; the median."""
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})  # who shares one with the other never spins
    value, taken = np.zeros(16), []
    tr.barrier()
    for _ in range(TURNS):
        if rank == 1:
            time.sleep(LATE)
        before = time.thread_time()
        if waits == "all_reduce":
            tr.all_reduce(value)
        elif rank == 0:
            tr.recv(value, 1)
        else:
            tr.send(value, 0)
        taken.append(time.thread_time() - before)
    return float(np.median(taken))


@pytest.fixture
def strangers() -> Iterator[None]:
    """Processes of another session that keep all processors busy."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command, start_new_session=True) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize("waits", ["all_reduce", "recv"])
def test_who_waits_beside_strangers_sleeps(waits: str) -> None:
    found = run_in_one_world(2, {waits: partial(costs, waits)}, 60.0)
    assert found[waits][0] < MOST, found
