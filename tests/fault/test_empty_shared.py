"""Shared arrays: what they give, and ranks that die, stay away or have no memory for them."""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.forked import Raised
from support.hosts import needs_hosts, plugged, run_on_hosts

import torsh_runtime as tr

World = Callable[..., list[Any]]
HUGE = 1 << 50


def check(results: list[Any]) -> list[Any]:
    errors = [result.error.trace for result in results if isinstance(result, Raised)]
    assert not errors, "\n".join(errors)
    return results


def use(size: int) -> None:
    array = tr.empty_shared(size)
    array[:] = tr.get_rank() + 1
    tr.all_reduce(array)
    ranks = tr.get_world_size()
    assert (array == ranks * (ranks + 1) / 2).all()


def share_and_reduce(rank: int) -> None:
    for size in (0, 1, 1000, 1_000_000, (3, 5)):
        array = tr.empty_shared(size)
        assert array.shape == (size if isinstance(size, tuple) else (size,))
        array[...] = rank
        assert array.sum() == rank * array.size
    use(300_000)


def test_in_a_node(process_world: World) -> None:
    check(process_world(3, share_and_reduce, 30.0))


def drop(rank: int) -> None:
    """Bytes of the rank's memory, seen past an array that is gone."""
    array = tr.empty_shared(3_000_000, "uint8")
    array[:] = 7
    tr.barrier()
    last, memory = array[-1:].reshape(1, 1), array.base.base
    start = array.ctypes.data - np.frombuffer(memory, np.uint8).ctypes.data
    del array
    gc.collect()
    assert memory[start] == 7  # a view of it is left
    if os.fork() == 0:
        del last
        os._exit(0)
    os.wait()
    assert memory[start] == 7  # the child's end of it is nobody else's
    del last
    tr.barrier()
    assert not any(memory[start + at] for at in range(0, 3_000_000, 4096))
    use(300_000)


def test_memory_of_an_array_that_is_gone_is_given_back(process_world: World) -> None:
    check(process_world(2, drop, 30.0))


@needs_hosts
@pytest.mark.netns
def test_in_two_nodes() -> None:
    with plugged(2) as hosts:
        check(run_on_hosts([hosts[0], hosts[0], hosts[1]], share_and_reduce, 30.0))


@pytest.mark.parametrize(
    ("shape", "dtype"), [(-1, "float32"), ((2, -3), "int8"), (1 << 62, "int16"), (3, object)]
)
def test_what_cannot_be_shared_is_refused_at_once(
    process_world: World, shape: Any, dtype: Any
) -> None:
    def body(rank: int) -> None:
        if rank == 0:
            with pytest.raises(ValueError, match="cannot be in shared memory"):
                tr.empty_shared(shape, dtype)
        use(10)

    check(process_world(2, body, 30.0))


def test_more_than_there_is_hurts_nobody(process_world: World) -> None:
    def body(rank: int) -> str:
        with pytest.raises(tr.BackendUnavailable) as caught:
            tr.empty_shared(HUGE, "uint8")
        use(1000)
        return str(caught.value)

    for text in check(process_world(3, body, 30.0)):
        assert "shared memory of" in text


@pytest.mark.parametrize("poor", [0, 2])
def test_a_rank_without_memory_is_named_by_the_others(process_world: World, poor: int) -> None:
    size = 64 << 20

    def body(rank: int) -> str:
        before = resource.getrlimit(resource.RLIMIT_AS)
        if rank == poor:
            resource.setrlimit(resource.RLIMIT_AS, (size, before[1]))
        with pytest.raises(tr.BackendUnavailable) as caught:
            tr.empty_shared(size, "uint8")
        resource.setrlimit(resource.RLIMIT_AS, before)
        use(1000)
        return str(caught.value)

    found = check(process_world(3, body, 30.0))
    assert "The system refused" in found.pop(poor)
    for text in found:
        assert f"on rank(s) {poor}" in text


def test_ranks_that_want_different_sizes_are_told(process_world: World) -> None:
    def body(rank: int) -> str:
        with pytest.raises(tr.ConfigError) as caught:
            tr.empty_shared(5 if rank == 1 else 6, "uint8")
        use(1000)
        return str(caught.value)

    for text in check(process_world(3, body, 30.0)):
        assert "rank 1 asked for 5 bytes of shared memory and rank 0 for 6" in text


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_has_died_is_named(process_world: World, victim: int) -> None:
    def body(rank: int) -> None:
        tr.barrier()
        if rank == victim:
            os._exit(3)
        tr.empty_shared(1000)

    results = process_world(3, body, 60.0)
    for rank in {0, 1, 2} - {victim}:
        error = results[rank].error
        assert (error.kind, error.rank) == ("PeerLost", victim)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_while_they_share_is_named(process_world: World, victim: int) -> None:
    def body(rank: int) -> None:
        if rank == victim:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            tr.empty_shared(1000)

    results = process_world(3, body, 60.0)
    for rank in {0, 1, 2} - {victim}:
        error = results[rank].error
        assert (error.kind, error.rank) == ("PeerLost", victim)


def test_a_rank_that_stays_away_is_named(process_world: World) -> None:
    def body(rank: int) -> None:
        if rank == 1:
            time.sleep(2.0)
        tr.empty_shared(1000)

    for result in process_world(3, body, 0.5):
        assert result.error.kind == "CommTimeout"
        assert result.error.missing == (1,)


def test_ctrl_c_tells_the_others(process_world: World) -> None:
    def body(rank: int) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if rank == 0:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        if rank == 1:
            time.sleep(1.0)
        tr.empty_shared(1000)

    results = process_world(3, body, 60.0)
    assert [each.error.kind for each in results] == ["KeyboardInterrupt", *["CommAborted"] * 2]
