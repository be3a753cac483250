"""Ordinary numpy arrays lie in memory that the ranks of a node share, and behave as always."""

from __future__ import annotations

import ctypes
import os
import random
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forked import Raised
from support.ports import free_address

import torsh_runtime as tr
from torsh_runtime.backends.native import arrays, node_file

World = Callable[..., list[Any]]
_MCL_FUTURE = 2  # of mlockall(2)
COUNT = 400_000
"""Of float32: an array that is shared."""
MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+ *(.*)")


def check(results: list[Any]) -> list[Any]:
    errors = [result.error for result in results if isinstance(result, Raised)]
    assert not errors, "\n".join(getattr(error, "trace", repr(error)) for error in errors)
    return results


def is_shared(array: Any) -> bool:
    """Whether it lies in a shared mapping of the file, of which this is what the system says."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last, rights, name = MAPPING.fullmatch(line).groups()  # type: ignore[union-attr]
        if int(first, 16) <= address < int(last, 16):
            return rights == "rw-s" and "torsh-segment" in name
    raise AssertionError("it lies nowhere")


def present() -> int:
    """Bytes of the file with arrays that take memory."""
    sizes = [0]
    for link in Path("/proc/self/fd").iterdir():
        try:
            if "torsh-segment" in str(link.readlink()):
                status = link.stat()
                sizes.append(status.st_blocks * 512)
        except FileNotFoundError:
            continue
    return max(sizes)


def seen_of_peers() -> int:
    """Bytes of other ranks' parts that this process has looked at: those that no dump shows."""
    seen, in_file, size = 0, False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if mapping := MAPPING.fullmatch(line):
            in_file = "torsh-segment" in mapping[4]
        elif line.startswith("Rss:"):
            size = int(line.split()[1]) * 1024
        elif line.startswith("VmFlags:") and in_file and "dd" in line.split():
            seen += size
    return seen


# ---- which arrays


def places(rank: int, addresses: Sequence[str]) -> None:
    large, small = np.ones(COUNT, np.float32), np.ones(1000)
    assert is_shared(large)
    assert not is_shared(small)
    assert is_shared(large * 2)
    assert is_shared(np.zeros((1000, 1000)))
    found: list[bool] = []
    other = threading.Thread(target=lambda: found.append(is_shared(np.ones(COUNT))))
    other.start()
    other.join()
    assert found == [False]
    tr.destroy_process_group()
    assert not is_shared(np.ones(COUNT))
    assert large.sum() == COUNT
    os.environ["TORSH_SHARE_ARRAYS"] = "0"
    tr.init_process_group("native", addresses[0], 20.0, 2, rank)
    assert not is_shared(np.ones(COUNT))
    tr.destroy_process_group()
    del os.environ["TORSH_SHARE_ARRAYS"]
    tr.init_process_group("native", addresses[1], 20.0, 2, rank)
    again = np.full(COUNT, rank + 1, np.float32)
    assert is_shared(again)
    tr.all_reduce(large)
    tr.all_reduce(again)
    assert (large == 2).all()
    assert (again == 3).all()


def test_large_arrays_of_the_thread_that_made_the_group_are_shared(process_world: World) -> None:
    addresses = [free_address(), free_address()]
    check(process_world(2, lambda rank: places(rank, addresses), 30.0))


def test_ranks_must_agree_on_the_switch(process_world: World) -> None:
    def body(rank: int) -> str:
        tr.destroy_process_group()
        os.environ["TORSH_SHARE_ARRAYS"] = "01"[rank]
        with pytest.raises(tr.ConfigError) as caught:
            tr.init_process_group("native", first, 20.0, 2, rank)
        del os.environ["TORSH_SHARE_ARRAYS"]
        tr.init_process_group("native", second, 20.0, 2, rank)
        return str(caught.value)

    first, second = free_address(), free_address()
    for text in check(process_world(2, body, 30.0)):
        assert "TORSH_SHARE_ARRAYS is 0 on rank 0 and 1 on rank 1" in text


def test_a_value_that_is_none_is_refused() -> None:
    assert arrays.is_wanted({})
    with pytest.raises(tr.ConfigError, match="TORSH_SHARE_ARRAYS='yes' is neither 0 nor 1"):
        arrays.is_wanted({"TORSH_SHARE_ARRAYS": "yes"})


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_FSIZE])
def test_without_address_space_or_large_files_all_goes_on(process_world: World, limit: int) -> None:
    def body(rank: int) -> bool:
        tr.destroy_process_group()
        if rank == 0:
            resource.setrlimit(limit, (8 << 30, 8 << 30))
        tr.init_process_group("native", address, 20.0, 2, rank)
        array = np.full(COUNT, rank, np.float32)
        tr.all_reduce(array)
        assert (array == 1).all()
        return is_shared(array)

    address = free_address()
    assert not check(process_world(2, body, 30.0))[0]


@pytest.mark.skipif(
    os.geteuid() != 0 and resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != resource.RLIM_INFINITY,
    reason="this user may not lock as much memory as a process maps",
)
def test_who_locks_what_it_maps_maps_no_more_than_it_uses(process_world: World) -> None:
    def body(rank: int) -> bool:
        tr.destroy_process_group()
        libc = ctypes.CDLL(None, use_errno=True)
        assert rank or libc.mlockall(_MCL_FUTURE) == 0
        try:
            tr.init_process_group("native", address, 20.0, 2, rank)
            array, group = np.full(COUNT, rank, np.float32), tr.new_group()
            tr.all_reduce(array, group=group)
            assert (array == 1).all()
            return is_shared(array)
        finally:
            libc.munlockall()

    address = free_address()
    assert check(process_world(2, body, 30.0)) == [False, True]


# ---- collectives


def every_operation(rank: int) -> None:
    n = tr.get_world_size()
    tr.all_reduce(np.ones(1))
    before = seen_of_peers()  # tables for further groups
    array = np.full(n * COUNT, rank + 1, np.float32)
    part = np.full(COUNT, rank + 1, np.float32)
    tr.all_reduce(array)
    assert seen_of_peers() > before
    assert (array == n * (n + 1) / 2).all()
    tr.broadcast(part, n - 1)
    assert (part == n).all()
    part[:] = rank
    tr.all_gather_into_tensor(array, part)
    assert (array.reshape(n, COUNT) == np.arange(n)[:, None]).all()
    array[:] = np.arange(n * COUNT) // COUNT
    tr.reduce_scatter_tensor(part, array)
    assert (part == n * rank).all()
    sent = np.full((n, COUNT), rank, np.float32) + 10 * np.arange(n, dtype=np.float32)[:, None]
    got = np.empty_like(sent)
    tr.all_to_all_single(got, sent)
    assert (got == np.arange(n)[:, None] + 10 * rank).all()
    for root in range(n):
        rows = [np.empty(COUNT, np.float32) for _ in range(n)]
        tr.gather(part, rows if rank == root else None, root)
        if rank == root:
            assert all((row == n * peer).all() for peer, row in enumerate(rows))
        tr.scatter(part, [row * 2 for row in rows] if rank == root else None, root)
        assert (part == 2 * n * rank).all()
        part[:] = n * rank
    everywhere = np.full(COUNT + 7, 1, np.float32)[3:-2]  # a part of one
    elsewhere = np.frombuffer(bytearray(4 * everywhere.size), np.float32)
    mixed = elsewhere if rank == 0 else everywhere
    mixed[:] = rank
    tr.all_reduce(mixed)
    assert (mixed == n * (n - 1) / 2).all()


@pytest.mark.parametrize("ranks", [2, 3])
def test_operations_work_on_them(process_world: World, ranks: int) -> None:
    check(process_world(ranks, every_operation, 60.0))


def test_groups_of_some_ranks_use_them_too(process_world: World) -> None:
    def body(rank: int) -> int:
        pairs = [tr.new_group([0, 2]), tr.new_group([1, 3])]
        array = np.full(COUNT, rank, np.float32)
        tr.all_reduce(array, group=pairs[rank % 2])
        assert (array == 2 + 2 * (rank % 2)).all()
        return seen_of_peers()

    assert all(seen > 0 for seen in check(process_world(4, body, 60.0)))


# ---- forks


def in_fork(body: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
    """body() in a fork of this process, once meanwhile() has run here."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(told, 1)
        try:
            os._exit(0 if body() else 1)
        finally:
            os._exit(2)
    meanwhile()
    os.write(tell, b"!")
    assert os.waitpid(child, 0)[1] == 0
    os.close(told)
    os.close(tell)


def forks(rank: int) -> None:
    array = np.full(COUNT, 7, np.float32)
    never_written = [np.zeros(3 * COUNT, np.float32)]

    def change() -> None:
        array[:] = 8
        never_written.clear()
        for _ in range(20):  # new arrays, perhaps where the old one was
            assert np.full(3 * COUNT, 9, np.float32).sum() == 27 * COUNT

    def sees_what_was() -> bool:
        as_it_was = (array == 7).all() and not never_written[0].any()
        array[:] = 5
        never_written[0][:] = 5
        new = np.full(COUNT, 6, np.float32)
        return bool(as_it_was and not is_shared(new) and new.sum() == 6 * COUNT)

    in_fork(sees_what_was, change)
    assert (array == 8).all()
    assert not is_shared(array)

    def sees_the_same_again() -> bool:
        mine = array.copy()
        array[:] = 4
        return bool((mine == 8).all())

    in_fork(sees_the_same_again)
    tr.all_reduce(array)
    assert (array == 16).all()
    new = np.full(COUNT, rank, np.float32)
    assert is_shared(new)
    tr.all_reduce(new)
    assert (new == 1).all()
    in_fork(lambda: bool((new == 1).all() and (array == 16).all()))


def test_a_fork_has_its_arrays_as_they_were(process_world: World) -> None:
    check(process_world(2, forks, 60.0))


def fork_during_an_operation(rank: int) -> None:
    array = np.full(COUNT, rank + 1, np.float32)
    if rank == 0:
        work = tr.all_reduce(array, async_op=True)
        time.sleep(0.3)  # it has lent the array by now

        def sees_what_was() -> bool:
            in_fork(lambda: bool((array == 1).all()))  # as a fork of it does
            in_fork(lambda: bool((array == 1).all()))
            return bool((array == 1).all()) and not is_shared(array)

        in_fork(sees_what_was)
        assert is_shared(array)
        tr.send(np.zeros(1), 1)
        assert work is not None
        work.wait()
    else:
        tr.recv(np.zeros(1), 0)
        tr.all_reduce(array)
    assert (array == 3).all()


def test_a_fork_during_an_operation_has_what_was_there(process_world: World) -> None:
    check(process_world(2, fork_during_an_operation, 60.0))


def write_while_forking(rank: int) -> None:
    counts = np.zeros(2 * COUNT, np.int64)
    rounds, over = [0], threading.Event()

    def count() -> None:
        while not over.is_set():
            np.add(counts, 1, out=counts)
            rounds[0] += 1

    for _ in range(5):
        over.clear()
        counting = threading.Thread(target=count)
        counting.start()
        time.sleep(0.01)
        in_fork(lambda: True)
        over.set()
        counting.join()
        assert (counts == rounds[0]).all()
        counts = counts.copy()
        assert is_shared(counts)


def test_what_other_threads_write_during_a_fork_is_not_lost(process_world: World) -> None:
    check(process_world(2, write_while_forking, 60.0))


# ---- failures


def fail(rank: int) -> None:
    array = np.full(COUNT, 7, np.float32)
    group = tr.new_group([0, 1], timeout=0.5)
    if rank == 0:
        with pytest.raises(tr.CommTimeout):
            tr.all_reduce(array, group=group)
        assert not is_shared(array)  # a rank that was late can do nothing to it any more
        assert (array == 7).all()
        address = array.__array_interface__["data"][0]
        del array
        others = [np.ones(COUNT, np.float32) for _ in range(20)]
        assert address not in [each.__array_interface__["data"][0] for each in others]
    tr.barrier()


def test_after_a_failure_nobody_else_can_write_into_an_array(process_world: World) -> None:
    check(process_world(2, fail, 60.0))


def fail_beside_another(rank: int) -> None:
    one, other = tr.new_group([0, 1], timeout=0.5), tr.new_group([0, 1])
    whole = np.full(2 * COUNT, rank + 1, np.float32)
    half, rest = whole[:COUNT], whole[COUNT:]
    if rank == 0:
        work = tr.all_reduce(rest, group=other, async_op=True)
        with pytest.raises(tr.CommTimeout):
            tr.all_reduce(half, group=one)
        tr.send(np.zeros(1), 1)
        assert work is not None
        work.wait()
        assert not is_shared(whole)
    else:
        tr.recv(np.zeros(1), 0)
        tr.all_reduce(rest, group=other)
    assert (rest == 3).all()


def test_a_failure_leaves_other_groups_their_part_of_an_array(process_world: World) -> None:
    check(process_world(2, fail_beside_another, 60.0))


def leave_in_another_thread(rank: int, address: str) -> None:
    leaving = threading.Thread(target=tr.destroy_process_group)
    leaving.start()
    leaving.join()
    tr.init_process_group("native", address, 20.0, 2, rank)
    assert is_shared(np.ones(COUNT))


def test_a_group_that_another_thread_has_left_is_no_obstacle(process_world: World) -> None:
    address = free_address()
    check(process_world(2, lambda rank: leave_in_another_thread(rank, address), 30.0))


def test_what_the_control_group_may_use_counts() -> None:
    limit = arrays._limit_of_cgroup()
    assert 0 < limit <= sys.maxsize


# ---- memory


def churn(rank: int) -> None:
    chance = random.Random(rank)
    held: list[tuple[Any, int]] = []
    for number in range(1500):
        if held and chance.random() < 0.5:
            array, value = held.pop(chance.randrange(len(held)))
            assert (array == value).all()
            if chance.random() < 0.2:
                array = array.copy()
                array.resize(chance.randrange(1, 2 * array.size))
                assert array[0] == value
        elif chance.random() < 0.3:
            zeros = np.zeros(chance.randrange(100_000, 1_000_000), np.int64)
            assert not zeros.any()
            zeros[:] = number
            held.append((zeros, number))
        else:
            held.append((np.full(chance.randrange(100_000, 1_000_000), number), number))
        if len(held) > 20:
            held.pop(0)
    for array, value in held:
        assert (array == value).all()


def test_arrays_that_come_and_go_hold_what_was_written(process_world: World) -> None:
    check(process_world(2, churn, 60.0))


KEPT = 16 << 20


def let_go(rank: int) -> None:
    before = present()
    tr.barrier()
    for size in (KEPT // 4, KEPT, 2 * KEPT):
        array = np.ones(size, np.uint8)
        tr.barrier()
        assert present() - before >= 2 * size
        tr.barrier()
        del array
        tr.barrier()
        assert present() - before <= 2 * KEPT
        tr.barrier()


def test_memory_of_arrays_that_are_gone_is_given_back(
    process_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "_KEPT", node_file.memory() // KEPT // 2)
    check(process_world(2, let_go, 60.0))
