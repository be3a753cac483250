"""The functional API over ranks that are processes, in one node and in two."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from support.hosts import needs_hosts, plugged, run_on_hosts
from support.ports import free_address

import torsh_runtime as tr
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.non_member import NonMember

World = Callable[..., list[Any]]


def value(rank: int) -> float:
    """What rank has in each element of its arrays."""
    return float(rank + 1)


def total(ranks: int) -> float:
    return sum(map(value, range(ranks)))


# --- every operation, by the ranks of the default group ---


def every_operation(rank: int) -> None:
    """Run by all ranks; asserts what each operation has to give."""
    n = tr.get_world_size()
    own = np.full(3, value(rank))
    everyone = [np.full(3, value(peer)) for peer in range(n)]

    for root in range(n):
        array = own.copy()
        tr.reduce(array, root, tr.ReduceOp.MAX)
        assert array[0] == (value(n - 1) if rank == root else value(rank))
        array = own.copy()
        tr.broadcast(array, root)
        assert array.tolist() == everyone[root].tolist()
        rows = [np.empty(3) for _ in range(n)] if rank == root else None
        tr.gather(own, rows, root)
        assert rows is None or np.array_equal(rows, everyone)
        array = np.empty(3)
        tr.scatter(array, everyone if rank == root else None, root)
        assert array.tolist() == own.tolist()

    array = own.copy()
    tr.all_reduce(array)
    assert array.tolist() == [total(n)] * 3
    tr.all_reduce(array, tr.premul_sum(0.5))
    assert array.tolist() == [total(n) * n / 2] * 3
    rows = [np.empty(3) for _ in range(n)]
    tr.all_gather(rows, own)
    assert np.array_equal(rows, everyone)
    table = np.empty((n, 3))
    tr.all_gather_into_tensor(table, own)
    assert np.array_equal(table, everyone)
    array = np.empty(3)
    tr.reduce_scatter(array, everyone)
    assert array.tolist() == [value(rank) * n] * 3
    tr.reduce_scatter_tensor(array, np.array(everyone))
    assert array.tolist() == [value(rank) * n] * 3
    tr.barrier()
    tr.monitored_barrier(timeout=timedelta(seconds=20))


def exchanges(rank: int) -> None:
    n = tr.get_world_size()
    out = [np.full(rank + peer, 100.0 * rank + peer) for peer in range(n)]
    into = [np.empty(rank + peer) for peer in range(n)]
    tr.all_to_all(into, out)
    assert all((got == 100.0 * peer + rank).all() for peer, got in enumerate(into))
    table = np.empty((n, 2))
    tr.all_to_all_single(table, np.array([[rank, peer] for peer in range(n)], float))
    assert table.tolist() == [[peer, rank] for peer in range(n)]
    sizes = [rank + peer for peer in range(n)]
    flat = np.empty((sum(sizes), 2))
    tr.all_to_all_single(flat, np.full((sum(sizes), 2), float(rank)), sizes, sizes)
    assert flat[:, 1].tolist() == [peer for peer in range(n) for _ in range(sizes[peer])]


def messages(rank: int) -> None:
    n = tr.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    got = np.zeros(4)
    if rank % 2:
        tr.send(np.full(4, value(rank)), right, tag=7)
        assert tr.recv(got, left, tag=7) == left
    else:
        assert tr.recv(got, left, tag=7) == left
        tr.send(np.full(4, value(rank)), right, tag=7)
    assert got.tolist() == [value(left)] * 4

    big = np.full(1 << 18, value(rank))  # 2 MiB: nobody holds that for a receiver to come
    room = np.empty_like(big)
    works = tr.batch_isend_irecv([tr.P2POp(tr.isend, big, right), tr.P2POp(tr.irecv, room, left)])
    assert all(work.wait() for work in works)
    assert (room == value(left)).all()

    if rank == 0:
        sources = {tr.recv(got) for _ in range(n - 1)}
        assert sources == set(range(1, n))
    else:
        tr.isend(np.zeros(4), 0).wait()
    tr.barrier()


def objects(rank: int) -> None:
    n = tr.get_world_size()
    found: list[Any] = [None] * n
    tr.all_gather_object(found, {"rank": rank, "text": "x" * 1000 * rank})
    assert [(each["rank"], len(each["text"])) for each in found] == [
        (peer, 1000 * peer) for peer in range(n)
    ]
    gathered: list[Any] | None = [None] * n if rank == n - 1 else None
    tr.gather_object((rank,), gathered, n - 1)
    assert gathered is None or gathered == [(peer,) for peer in range(n)]
    pair = [1, {"two": 2}] if rank == 1 else [None, None]
    tr.broadcast_object_list(pair, 1)
    assert pair == [1, {"two": 2}]
    part: list[Any] = [None]
    tr.scatter_object_list(part, [f"for {peer}" for peer in range(n)] if rank == 0 else None)
    assert part == [f"for {rank}"]
    if rank == 0:
        for _ in range(1, n):
            assert tr.recv_object_list(pair) == pair[0]
    else:
        tr.send_object_list([rank, None], 0)


def asynchronous_objects(rank: int) -> None:
    n = tr.get_world_size()
    array = np.full(1000, value(rank))
    found: list[Any] = [None] * n
    gathered: list[Any] | None = [None] * n if rank == 0 else None
    pair = [1, {"two": 2}] if rank == n - 1 else [None, None]
    part: list[Any] = [None]
    mine = {"rank": rank}
    works = [
        tr.all_reduce(array, async_op=True),
        tr.all_gather_object(found, mine, async_op=True),
        tr.gather_object((rank,), gathered, 0, async_op=True),
        tr.broadcast_object_list(pair, n - 1, async_op=True),
        tr.scatter_object_list(part, list(range(n)) if rank == 0 else None, async_op=True),
        tr.all_reduce(array, async_op=True),
    ]
    mine["rank"] = -1  # what was given was taken at the call
    for work in works:
        assert work is not None
        assert work.wait()
    assert (array == total(n) * n).all()
    assert found == [{"rank": peer} for peer in range(n)]
    assert gathered is None or gathered == [(peer,) for peer in range(n)]
    assert pair == [1, {"two": 2}]
    assert part == [rank]
    wrong = tr.broadcast_object_list([None] * (1 + (rank > 0)), 0, async_op=True)
    assert wrong is not None
    if rank > 0:
        with pytest.raises(ValueError, match="make it as long"):
            wrong.wait()
    else:
        wrong.wait()


def objects_by_threads(rank: int) -> None:
    """Those of several threads and the messages of another do not get in each other's way."""
    n = tr.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    wrong: list[Any] = []

    def talk(number: int) -> None:
        for count in range(20):
            tr.send_object_list([number, "x" * 700 * count], right)
            got: list[Any] = [None, None]
            source = tr.recv_object_list(got, left if number % 2 else None)
            if source != left or len(got[1]) % 700:
                wrong.append((source, got))

    def count_up() -> None:
        array = np.zeros(1, np.int64)
        for count in range(60):
            tr.send(np.array([count]), right)
            tr.recv(array, left)
            if array[0] != count:
                wrong.append(array[0])

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(3)]
    threads.append(threading.Thread(target=count_up))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def probes(rank: int) -> None:
    n = tr.get_world_size()
    assert tr.iprobe(tag=None) is None
    tr.barrier()
    if rank == 0:
        for _ in range(1, n):
            found = tr.probe(tag=None)
            array = np.empty(found.num_bytes // 8, np.int64)
            assert tr.recv(array, found.source, tag=found.tag) == found.source
            assert array.tolist() == [found.source] * (found.tag + 1)
        assert tr.iprobe(tag=None) is None
    else:
        tr.send(np.full(rank + 1, rank), 0, tag=rank)
    tr.barrier()


def asynchronous(rank: int) -> None:
    n = tr.get_world_size()
    arrays = [np.full(1 << power, value(rank)) for power in range(15)]
    works = [tr.all_reduce(array, async_op=True) for array in arrays]
    for work in works:
        assert work is not None
        assert work.wait()
        assert work.done()
        assert work.exception() is None
    assert all((array == total(n)).all() for array in arrays)
    with tr.coalesce(async_op=True) as batch:
        for array in arrays:
            tr.all_reduce(array, tr.ReduceOp.MAX)
        tr.isend(np.zeros(1), (rank + 1) % n)
        tr.irecv(np.zeros(1), (rank - 1) % n)
    assert batch.wait(20.0)
    assert batch.done()
    assert all((array == total(n)).all() for array in arrays)
    with tr.coalesce():
        tr.all_reduce(arrays[0])
    assert arrays[0][0] == total(n) * n
    coalesce_what_is_reduced_as_one(rank)


def coalesce_what_is_reduced_as_one(rank: int) -> None:
    """Small neighbours of one dtype; others, and of other sizes and strides, among them."""
    n = tr.get_world_size()
    sizes = [1, 1000, 0, 16_000, 3, 200_000, 5, 7, 16_000]
    dtypes = [np.float32] * 7 + [np.int64] * 2
    arrays = [np.full(2 * s, value(rank), d)[::2] for s, d in zip(sizes, dtypes, strict=True)]
    arrays += [np.full(16_000, value(rank)) for _ in range(20)]  # more than go into one
    for op, wanted in ((tr.ReduceOp.SUM, total(n)), (tr.ReduceOp.MAX, total(n))):
        for async_op in (False, True):
            given = [array.copy() for array in arrays]
            if async_op:
                given[1] = given[1][::-1]
            with tr.coalesce(async_op=async_op) as work:
                for array in given:
                    tr.all_reduce(array, op)
            work.wait()
            expected = wanted if op is tr.ReduceOp.SUM else max(map(value, range(n)))
            assert all((array == expected).all() for array in given)
    scaled = [np.full(3, value(rank)), np.full(4, value(rank))]
    tr.all_reduce_coalesced(scaled, tr.PremulSum(2.0))
    assert all((array == 2 * total(n)).all() for array in scaled)


def sub_groups(rank: int) -> None:
    """Groups of some ranks: their own numbering, and the default group's."""
    n = tr.get_world_size()
    evens, odds = tr.new_group(range(0, n, 2)), tr.new_group(range(1, n, 2))
    inside, outside = (odds, evens) if rank % 2 else (evens, odds)
    assert isinstance(outside, NonMember) or n == 1
    with pytest.raises(tr.ConfigError, match=f"rank {rank} is not in the group"):
        tr.barrier(outside)
    members = tr.get_process_group_ranks(inside)
    assert members == list(range(rank % 2, n, 2))
    assert tr.get_group_rank(inside, rank) == tr.get_rank(inside) == rank // 2
    assert tr.get_global_rank(inside, 0) == rank % 2
    array = np.array([value(rank)])
    tr.all_reduce(array, group=inside)
    assert array[0] == sum(map(value, members))
    tr.broadcast(array, members[-1], inside)
    tr.broadcast(array, group=inside, group_src=0)
    for stranger in ((rank + 1) % 2, [0], "0"):
        with pytest.raises(ValueError, match="not in the group"):
            tr.broadcast(array, stranger, inside)
    for stranger in (99, -1, 1.5):
        with pytest.raises(ValueError, match="is not a rank of the group"):
            tr.broadcast(array, group=inside, group_src=stranger)
    everyone: list[Any] = [None] * len(members)
    tr.all_gather_object(everyone, rank, inside)
    assert everyone == members

    backwards = tr.split(0, key=-rank)
    assert backwards is not None
    assert tr.get_process_group_ranks(backwards) == list(range(n))[::-1]
    assert tr.get_rank(backwards) == n - 1 - rank
    array[0] = value(rank)
    tr.broadcast(array, 0, backwards)
    assert array[0] == value(0)
    nested = tr.split(rank % 2 if rank else None, group=backwards)
    assert (nested is None) == (rank == 0)
    if nested is not None:
        array[0] = 1
        tr.all_reduce(array, group=nested)
        assert array[0] == tr.get_world_size(nested)
    tr.barrier()  # whoever leaves a group that others use is lost to them
    tr.destroy_process_group(backwards)
    tr.barrier()


BODIES = [
    every_operation,
    exchanges,
    messages,
    objects,
    asynchronous_objects,
    objects_by_threads,
    probes,
    asynchronous,
    sub_groups,
]


def names(body: Callable[[int], None]) -> str:
    return body.__name__


def check(results: list[Any]) -> None:
    for rank, result in enumerate(results):
        assert result is None, f"rank {rank}: {getattr(result.error, 'trace', result)}"


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("body", BODIES, ids=names)
def test_in_a_node(process_world: World, body: Callable[[int], None], ranks: int) -> None:
    check(process_world(ranks, body, 30.0))


@needs_hosts
@pytest.mark.netns
@pytest.mark.parametrize("body", BODIES, ids=names)
def test_between_two_nodes(body: Callable[[int], None]) -> None:
    with plugged(2) as hosts:
        check(run_on_hosts([hosts[0], hosts[0], hosts[1]], body))


# --- groups over time ---


def test_groups_are_made_and_left_again_and_again(process_world: World) -> None:
    def body(rank: int) -> None:
        for _ in range(20):
            group = tr.new_group([1, 2]) if rank else tr.new_group([0])
            array = np.ones(1)
            tr.all_reduce(array, group=group)
            assert array[0] == tr.get_world_size(group)
            tr.destroy_process_group(group)

    check(process_world(3, body, 30.0))


def test_a_sub_group_outlives_no_default_group(process_world: World) -> None:
    address = free_address()

    def body(rank: int) -> None:
        first = tr.new_group()
        tr.destroy_process_group()
        with pytest.raises(tr.CommAborted):
            tr.barrier(first)
        tr.init_process_group("native", address, 20.0, 2, rank)
        second = tr.new_group()
        array = np.ones(1)
        tr.all_reduce(array, group=second)
        assert array[0] == 2

    check(process_world(2, body, 30.0))


def test_the_failure_of_a_sub_group_leaves_the_default_group_alone(process_world: World) -> None:
    def body(rank: int) -> None:
        group = tr.new_group(timeout=0.5)
        if rank == 0:
            with pytest.raises(tr.CommTimeout) as caught:
                tr.monitored_barrier(group)
            assert caught.value.missing == (1,)
        array = np.ones(1)
        tr.all_reduce(array)
        assert array[0] == 2

    check(process_world(2, body, 30.0))


def test_members_that_do_not_come_to_a_new_group_are_named(process_world: World) -> None:
    def body(rank: int) -> None:
        if rank == 0:
            with pytest.raises(tr.CommTimeout) as caught:
                tr.new_group([0, 2], timeout=0.5)
            assert caught.value.missing == (1,)  # of the group's own ranks
        tr.barrier()

    check(process_world(3, body, 30.0))


def test_different_backends_are_found_out(process_world: World) -> None:
    def body(rank: int) -> None:
        if rank == 0:
            with pytest.raises(tr.CommError, match="rank 1 gave up joining the group"):
                tr.new_group(backend="native")
        else:
            with pytest.raises(tr.ConfigError, match=r"rank 1 .* gloo and rank 0 native"):
                tr.new_group(backend="gloo")
        tr.barrier()

    check(process_world(2, body, 30.0))


# --- faults ---


def test_a_stopped_rank_is_named_by_the_monitored_barrier(process_world: World) -> None:
    def body(rank: int) -> tuple[int, ...]:
        tr.barrier()
        if rank == 1:
            time.sleep(60)
        with pytest.raises(tr.CommTimeout) as caught:
            tr.monitored_barrier(timeout=0.5)
        return caught.value.missing

    def kill_the_sleeper(pids: list[int]) -> None:
        time.sleep(2.0)
        os.kill(pids[1], signal.SIGKILL)

    results = process_world(3, body, 30.0, meanwhile=kill_the_sleeper)
    assert [results[0], results[2]] == [(1,), (1,)]


@needs_hosts
@pytest.mark.netns
def test_without_a_secret_no_objects_cross_machines() -> None:
    def body(rank: int) -> None:
        with pytest.raises(tr.ConfigError, match="TORSH_SECRET"):
            tr.all_gather_object([None, None], rank)
        tr.barrier()

    with plugged(2) as hosts:
        check(run_on_hosts(hosts, body, secret=""))


# --- choosing a backend ---


def run_alone(script: str) -> str:
    return subprocess.run(
        [sys.executable, "-P", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"},
    ).stdout


def test_one_rank_is_single() -> None:
    script = "import torsh_runtime as tr; tr.init_process_group(); print(tr.get_backend())"
    assert run_alone(script).strip() == "single"


def test_several_ranks_are_native_and_the_reason_is_logged(
    process_world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    address = free_address()

    def body(rank: int) -> str:
        assert default_group().backend == "native"
        logging.basicConfig(level=logging.INFO, force=True)
        tr.destroy_process_group()
        tr.init_process_group(None, address, 20.0, 2, rank)
        return tr.get_backend()

    assert process_world(2, body, 30.0) == ["native", "native"]
    assert "backend native: it is the fastest on CPUs" in capfd.readouterr().err


def test_availability_is_told_without_an_error() -> None:
    for is_available in (tr.is_gloo_available, tr.is_mpi_available, tr.is_nccl_available):
        assert is_available() in (True, False)


# --- torch's names ---


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_calls_written_for_torch_distributed_fit() -> None:
    """Same names, order and defaults of the arguments, as far as torch's go with CPUs."""
    script = """
import inspect
import torch.distributed as dist
import torsh_runtime as tr

for name in tr.__all__:
    theirs = getattr(dist, name, None)
    if name == "init_process_group" or not inspect.isfunction(theirs):
        continue
    ours = list(inspect.signature(getattr(tr, name)).parameters.values())
    them = list(inspect.signature(theirs).parameters.values())
    more = [each.name for each in ours[len(them):]]
    assert more in ([], ["async_op"], ["comm_strategy"]), (name, more)
    assert [each.name for each in ours[:len(them)]] == [each.name for each in them], name
    for our, their in zip(ours, them):
        if their.name != "op":
            same = our.default in (their.default, None)
            assert same, (name, our, their)
    print(name)
"""
    assert len(run_alone(script).split()) > 30
