"""Who waits for another rank leaves its processor to others before long."""

from __future__ import annotations

import resource
import time
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


@pytest.mark.parametrize("waits", ["all_reduce", "recv"])
def test_who_waits_for_a_late_rank_sleeps(waits: str) -> None:
    found = run_in_one_world(2, {waits: partial(sleeps, waits)}, 60.0)
    assert found[waits][0] > TURNS / 2, found
