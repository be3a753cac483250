"""Ranks that read and write each other's memory, and run ahead of each other; some are stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest
from numpy.typing import NDArray
from support.tracing import held_at_call
from support.worlds import run_processes

import torsh_runtime as tr
from torsh_runtime.comm.group import ProcessGroup

RANKS, VICTIM = 3, 1
ELEMENTS = 3 * 400_000
BRIEFLY = 0.3
"""Seconds that the others wait for a rank that is stopped."""
UNTIL_HELD = 1.0
"""Seconds of an operation in which one rank is stopped at each system call."""

Array = NDArray[np.float32]
Operation = Callable[[ProcessGroup, Array, Array], object]


def gather(group: ProcessGroup, whole: Array, part: Array) -> None:
    group.gather(part, list(whole.reshape(RANKS, -1)) if group.rank == 0 else None, 0)


def scatter(group: ProcessGroup, whole: Array, part: Array) -> None:
    group.scatter(part, list(whole.reshape(RANKS, -1)) if group.rank == VICTIM else None, VICTIM)


OPERATIONS: dict[str, Operation] = {
    "all_reduce": lambda group, whole, part: group.all_reduce(whole, tr.ReduceOp.MAX),
    "reduce": lambda group, whole, part: group.reduce(whole, 0, tr.ReduceOp.MAX),
    "broadcast": lambda group, whole, part: group.broadcast(whole, VICTIM),
    "gather": gather,
    "scatter": scatter,
}


def forever(operation: Operation, group: ProcessGroup, whole: Array, part: Array) -> NoReturn:
    while True:
        operation(group, whole, part)


@pytest.mark.parametrize("shared", ["0", "1"])
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_who_was_stopped_writes_nothing_later(
    name: str, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORSH_SHARE_ARRAYS", shared)

    def body(rank: int) -> bool:
        group = tr.new_group(timeout=BRIEFLY)
        whole, part = np.zeros(ELEMENTS, np.float32), np.zeros(ELEMENTS // RANKS, np.float32)
        with pytest.raises(tr.CommError):
            forever(OPERATIONS[name], group, whole, part)
        whole[:], part[:] = 7, 8
        time.sleep(4 * BRIEFLY)  # the victim goes on meanwhile
        return bool((whole == 7).all() and (part == 8).all())

    def stop(pids: list[int]) -> None:
        time.sleep(4 * BRIEFLY)
        os.kill(pids[VICTIM], signal.SIGSTOP)
        time.sleep(3 * BRIEFLY)
        os.kill(pids[VICTIM], signal.SIGCONT)

    assert run_processes(RANKS, body, 30.0, stop) == [True] * RANKS


@pytest.mark.parametrize("ranks", [2, 4])
def test_roots_may_run_ahead(process_world: Any, ranks: int) -> None:
    sizes = (1, 6, 100, 5_000, 40_000, 3)

    def body(rank: int) -> None:
        for step in range(600):
            root = step // 90 % ranks
            array = np.full(sizes[step // 7 % len(sizes)], step if rank == root else -1)
            tr.broadcast(array, root)
            assert (array == step).all()
            array[:] = -2  # what is on its way must not be this
            if step % 200 == 17 * rank:
                time.sleep(0.02)
            if step % 150 == 149:
                total = np.array([rank])
                tr.reduce(total, root)
                assert rank != root or total[0] == sum(range(ranks))

    assert process_world(ranks, body, 30.0) == [None] * ranks


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ranks that share a CPU do not write")
@pytest.mark.parametrize("name", ["all_reduce", "broadcast"])
def test_who_was_held_at_the_very_moment_of_writing_writes_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORSH_SHARE_ARRAYS", "0")  # where others write with plain stores

    def body(rank: int) -> bool:
        group = tr.new_group(timeout=UNTIL_HELD)
        whole = np.zeros(ELEMENTS, np.float32)
        with pytest.raises(tr.CommError):
            forever(OPERATIONS[name], group, whole, whole)
        whole[:] = 7
        time.sleep(4 * UNTIL_HELD)  # the victim goes on meanwhile
        return bool((whole == 7).all())

    def hold(pids: list[int]) -> None:
        time.sleep(4 * UNTIL_HELD)
        with held_at_call(pids[VICTIM], "process_vm_writev"):
            time.sleep(3 * UNTIL_HELD)

    assert run_processes(2, body, 30.0, hold)[1 - VICTIM] is True
