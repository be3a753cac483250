"""Who waits for another rank leaves its processor before long to others that want it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from support.worlds import run_in_one_world

import torsh_runtime as tr

TURNS = 200
LATE = 0.0005
"""Seconds, several times what it takes to be woken."""


def sleeps(waits: str, rank: int) -> int:
    """How often this rank has slept while it waited for the other, which came late each time."""
    value = np.zeros(16)
    tr.barrier()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    for _ in range(TURNS):
        if rank == 1:
            time.sleep(LATE)
        if waits == "all_reduce":
            tr.all_reduce(value)
        elif rank == 0:
            tr.recv(value, 1)
            tr.send(value, 1)
        else:
            tr.send(value, 0)
            tr.recv(value, 0)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before


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
    found = run_in_one_world(2, {waits: partial(sleeps, waits)}, 60.0)
    assert found[waits][0] > TURNS / 2, found
