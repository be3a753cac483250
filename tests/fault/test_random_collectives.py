"""Random collectives, and a rank that is killed or stopped at a random moment of them."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import torsh_runtime as tr

ROUNDS, ROUNDS_IN_FULL = 12, 500
TIMEOUT = 0.6
"""Seconds that an operation may take: a stopped rank is noticed then."""
MOST = 120_000
"""Elements of the largest arrays."""

Step = Callable[[int, int, random.Random], None]


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    return ROUNDS_IN_FULL if request.config.getoption("--soak") else ROUNDS


def size_of(choose: random.Random) -> int:
    return int(MOST ** choose.random())


def all_reduce(rank: int, ranks: int, choose: random.Random) -> None:
    dtype = choose.choice(["int64", "float32", "float16", "uint8"])
    array = np.full(size_of(choose), rank + 1, dtype)
    tr.all_reduce(array)
    assert (array == ranks * (ranks + 1) // 2).all()


def reduce(rank: int, ranks: int, choose: random.Random) -> None:
    root = choose.randrange(ranks)
    array = np.full(size_of(choose), rank, np.int32)
    tr.reduce(array, root, tr.ReduceOp.MAX)
    assert (array == (ranks - 1 if rank == root else rank)).all()


def broadcast(rank: int, ranks: int, choose: random.Random) -> None:
    root = choose.randrange(ranks)
    array = np.full(size_of(choose), rank, np.float64)
    tr.broadcast(array, root)
    assert (array == root).all()


def all_gather(rank: int, ranks: int, choose: random.Random) -> None:
    size = size_of(choose)
    gathered = [np.empty(size, np.int16) for _ in range(ranks)]
    tr.all_gather(gathered, np.full(size, rank, np.int16))
    assert all((part == peer).all() for peer, part in enumerate(gathered))


def reduce_scatter(rank: int, ranks: int, choose: random.Random) -> None:
    size = size_of(choose)
    part = np.empty(size, np.float32)
    tr.reduce_scatter_tensor(part, np.repeat(np.arange(ranks, dtype=np.float32), size))
    assert (part == rank * ranks).all()


def all_to_all(rank: int, ranks: int, choose: random.Random) -> None:
    sizes = [[size_of(choose) // 10 for _ in range(ranks)] for _ in range(ranks)]
    inputs = [np.full(sizes[rank][peer], rank, np.int32) for peer in range(ranks)]
    outputs = [np.empty(sizes[peer][rank], np.int32) for peer in range(ranks)]
    tr.all_to_all(outputs, inputs)
    assert all((part == peer).all() for peer, part in enumerate(outputs))


def ring(rank: int, ranks: int, choose: random.Random) -> None:
    size = size_of(choose)
    given, got = np.full(size, rank, np.int64), np.empty(size, np.int64)
    sending = tr.isend(given, (rank + 1) % ranks, tag=7)
    tr.recv(got, (rank - 1) % ranks, tag=7)
    assert sending is not None
    sending.wait()
    assert (got == (rank - 1) % ranks).all()


def many_at_once(rank: int, ranks: int, choose: random.Random) -> None:
    arrays = [np.full(size_of(choose), rank + 1, np.int64) for _ in range(5)]
    works = [tr.all_reduce(array, async_op=True) for array in arrays]
    for work, array in zip(works, arrays, strict=True):
        assert work is not None
        work.wait()
        assert (array == ranks * (ranks + 1) // 2).all()


def scatter_and_gather(rank: int, ranks: int, choose: random.Random) -> None:
    root, size = choose.randrange(ranks), size_of(choose)
    whole = [np.full(size, peer, np.int32) for peer in range(ranks)] if rank == root else None
    part = np.empty(size, np.int32)
    tr.scatter(part, whole, root)
    assert (part == rank).all()
    gathered = [np.empty(size, np.int32) for _ in range(ranks)] if rank == root else None
    tr.gather(part, gathered, root)
    assert gathered is None or all((each == p).all() for p, each in enumerate(gathered))


def barrier(rank: int, ranks: int, choose: random.Random) -> None:
    tr.barrier()


STEPS: list[Step] = [
    all_reduce, reduce, broadcast, all_gather, reduce_scatter, all_to_all, ring, many_at_once,
    scatter_and_gather, barrier,
]  # fmt: skip


def work_for_ever(rank: int, ranks: int, seed: int) -> None:
    choose = random.Random(seed)
    while True:
        choose.choice(STEPS)(rank, ranks, choose)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_every_survivor_names_the_culprit(
    process_world: Any, ranks: int, fault: signal.Signals, rounds: int
) -> None:
    for seed in range(rounds // 4):
        run_round(process_world, ranks, fault, seed)


def run_round(process_world: Any, ranks: int, fault: signal.Signals, seed: int) -> None:
    choose = random.Random(f"{seed} {ranks} {fault}")
    victim, moment = choose.randrange(ranks), choose.uniform(0.0, 0.3)
    begun, begin = os.pipe()

    def body(rank: int) -> None:
        os.write(begin, b"x")
        work_for_ever(rank, ranks, seed)

    def strike(pids: list[int]) -> None:
        for _ in range(ranks):
            os.read(begun, 1)
        time.sleep(moment)
        os.kill(pids[victim], fault)
        if fault is signal.SIGSTOP:
            time.sleep(2 * TIMEOUT + 1)
            os.kill(pids[victim], signal.SIGKILL)

    results = process_world(ranks, body, TIMEOUT, strike)
    os.close(begun)
    os.close(begin)
    for rank in set(range(ranks)) - {victim}:
        check_verdict(results[rank].error, victim, fault)


def check_verdict(error: Any, victim: int, fault: signal.Signals) -> None:
    if fault is signal.SIGKILL:
        assert (error.kind, getattr(error, "rank", None)) == ("PeerLost", victim), error.trace
    else:
        assert error.kind == "CommTimeout", error.trace
        assert victim in error.missing, error.text
        assert "stopped" in error.text
