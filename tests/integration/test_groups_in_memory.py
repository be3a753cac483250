"""Groups of a node's ranks meet in the memory that these have mapped, and whatever happens there is
noticed as it is over the store."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forked import Raised

import torsh_runtime as tr
from torsh_runtime.backends import bootstrap_store
from torsh_runtime.backends.native import backend, node_file
from torsh_runtime.store.client import StoreClient

World = Callable[..., list[Any]]


def check(results: list[Any]) -> None:
    for rank, result in enumerate(results):
        assert result is None, f"rank {rank}: {getattr(result.error, 'trace', result)}"


def total(group: tr.ProcessGroup) -> float:
    value = np.array([tr.get_rank() + 1.0])
    tr.all_reduce(value, group=group)
    return float(value[0])


def count_requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of stores from now on."""
    asked: list[str] = []
    real = StoreClient._send

    def send(self: StoreClient, call: Any, deadline: float) -> Any:
        asked.append(repr(call.request))
        return real(self, call, deadline)

    monkeypatch.setattr(StoreClient, "_send", send)
    return asked


def only_in_store(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """As if the system had refused that rank the memory for further groups."""
    real = backend.pool_of
    monkeypatch.setattr(
        backend, "pool_of", lambda met, *rest: None if met.rank == rank else real(met, *rest)
    )


def mapped() -> int:
    """Bytes of the segments that take memory, as this rank sees them."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    at = [number for number, line in enumerate(lines) if "torsh-segment" in line]
    sizes = [line.split() for number in at for line in lines[number : number + 24]]
    return sum(int(words[1]) * 1024 for words in sizes if words[0] == "Rss:")


def test_neither_store_nor_descriptors_are_needed(
    process_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = count_requests(monkeypatch)

    def body(rank: int) -> None:
        tr.barrier()
        asked.clear()
        before = len(os.listdir("/proc/self/fd"))
        groups = [tr.new_group() for _ in range(50)]
        pairs = [tr.new_group([pair, 3 - pair]) for pair in (0, 1)]
        mesh = tr.init_device_mesh((2, 2), ("a", "b"))
        assert [total(group) for group in groups] == [10.0] * 50
        assert total(pairs[min(rank, 3 - rank)]) == 5.0
        assert (total(mesh["a"].get_group()), total(mesh["b"].get_group())) == (
            (4.0 if rank % 2 == 0 else 6.0),
            (3.0 if rank < 2 else 7.0),
        )
        assert asked == []
        assert len(os.listdir("/proc/self/fd")) == before
        tr.barrier()

    check(process_world(4, body, 30.0))


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_a_member_that_does_not_come_is_named(process_world: World, absent: int) -> None:
    def body(rank: int) -> None:
        if rank != absent:
            with pytest.raises(tr.CommTimeout) as caught:
                tr.new_group(timeout=1.5)
            assert list(caught.value.missing) == [absent]
        tr.barrier()
        assert total(tr.new_group([2, 1, 0], sort_ranks=False)) == 6
        tr.barrier()

    check(process_world(3, body, 30.0))


@pytest.mark.parametrize("victim", [0, 2])
def test_a_member_that_is_killed_before_it_comes(process_world: World, victim: int) -> None:
    def body(rank: int) -> float:
        tr.barrier()
        if rank == victim:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(tr.PeerLost) as caught:
            tr.new_group(timeout=60.0)
        assert caught.value.rank == victim
        staying = [each for each in range(3) if each != victim]
        assert total(tr.new_group(staying)) == sum(staying) + 2
        return time.monotonic() - begin

    results = process_world(3, body, 30.0)
    assert isinstance(results.pop(victim), Raised)
    assert all(not isinstance(each, Raised) and each < 30 for each in results), results


def test_an_interrupted_member_tells_the_others(process_world: World) -> None:
    def body(rank: int) -> None:
        tr.barrier()
        if rank == 1:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        kind = KeyboardInterrupt if rank == 1 else tr.CommError
        if rank != 2:
            with pytest.raises(kind) as caught:
                tr.new_group(timeout=60.0)
            if rank == 0:
                assert "rank 1 gave up" in str(caught.value)
        tr.barrier()
        assert total(tr.new_group([2, 1, 0], sort_ranks=False)) == 6
        tr.barrier()

    check(process_world(3, body, 30.0))


@pytest.mark.torch
@pytest.mark.parametrize("other", [0, 1])
def test_another_backend_on_one_rank_is_refused(process_world: World, other: int) -> None:
    if not tr.is_gloo_available():
        pytest.skip("needs torch")

    def body(rank: int) -> None:
        kinds = (tr.ConfigError, tr.CommError)
        with pytest.raises(kinds, match="give all ranks of a group the same"):
            tr.new_group(backend="gloo" if rank == other else "native", timeout=60.0)
        tr.barrier()

    check(process_world(2, body, 30.0))


@pytest.mark.parametrize("without", [0, 1])
def test_a_rank_without_such_memory_takes_all_to_the_store(
    process_world: World, monkeypatch: pytest.MonkeyPatch, without: int
) -> None:
    only_in_store(monkeypatch, without)

    def body(rank: int) -> None:
        assert total(tr.new_group()) == 3
        assert total(tr.new_group([1, 0], sort_ranks=False)) == 3

    check(process_world(2, body, 30.0))


def test_where_there_is_no_more_room_groups_meet_in_the_store(
    process_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_file, "_POOL_STRIDE", 8 << 20)

    def body(rank: int) -> None:
        groups = [tr.new_group() for _ in range(8)]
        assert [total(group) for group in groups] == [3.0] * 8

    check(process_world(2, body, 30.0))


def test_where_the_file_must_be_small_groups_meet_in_the_store(
    process_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_file.NodeFile, "sizes", lambda self, *_: (self.segment_bytes,))
    check(process_world(2, lambda rank: None if total(tr.new_group()) == 3 else rank, 30.0))


def test_memory_of_groups_that_are_left_is_used_again(process_world: World) -> None:
    def body(rank: int) -> None:
        values = np.ones(100_000)

        def use() -> None:
            groups = [tr.new_group() for _ in range(4)]
            for group in groups:
                tr.all_reduce(values, group=group)
            for group in groups if rank else reversed(groups):
                tr.destroy_process_group(group)

        for _ in range(50):
            use()
        tr.barrier()
        use()
        tr.barrier()
        assert mapped() < 8 << 20  # of 200 groups that took 1 MiB each

    check(process_world(2, body, 30.0))


def test_threads_make_groups_at_the_same_time(process_world: World) -> None:
    def body(rank: int) -> None:
        made: dict[int, list[float]] = {}

        def make(first: int) -> None:
            members = [0, 1, 2] if first == 2 else [first, 2]
            if rank in members:
                made[first] = [total(tr.new_group(members)) for _ in range(20)]

        threads = [threading.Thread(target=make, args=(first,)) for first in range(3)]
        for thread in threads if rank != 1 else reversed(threads):
            thread.start()
        for thread in threads:
            thread.join()
        wanted = {0: [4.0] * 20, 1: [5.0] * 20, 2: [6.0] * 20}
        assert made == {
            first: wanted[first] for first in wanted if rank in (first, 2) or first == 2
        }
        tr.barrier()

    check(process_world(3, body, 30.0))


def test_a_dead_default_group_goes_on_making_groups(process_world: World) -> None:
    def body(rank: int) -> None:
        if rank == 0:
            tr.group.WORLD.abort()
        with pytest.raises(tr.CommAborted):
            tr.barrier()
        assert total(tr.new_group()) == 3

    check(process_world(2, body, 30.0))


def test_who_gives_up_when_all_have_come_is_not_waited_for(
    process_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: bootstrap_store.BootstrapStore) -> None:
        time.sleep(1.0)
        raise KeyboardInterrupt

    def body(rank: int) -> None:
        if rank == 1:
            monkeypatch.setattr(bootstrap_store.BootstrapStore, "look_around", interrupted)
        if rank == 2:
            time.sleep(1.3)  # rank 1 has begun to look around
        with pytest.raises(KeyboardInterrupt if rank == 1 else tr.CommError) as caught:
            tr.new_group(timeout=60.0)
        assert rank == 1 or "rank 1 gave up" in str(caught.value)
        tr.barrier()

    check(process_world(3, body, 30.0))


def test_a_member_that_is_killed_while_it_waits(process_world: World) -> None:
    def body(rank: int) -> None:
        tr.barrier()
        if rank == 2:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
        if rank != 1:
            with pytest.raises(tr.PeerLost) as caught:
                tr.new_group(timeout=60.0)
            assert caught.value.rank == 2
        assert total(tr.new_group([1, 0], sort_ranks=False)) == 3

    results = process_world(3, body, 30.0)
    assert isinstance(results.pop(), Raised)
    check(results)


@pytest.mark.parametrize("backend_of_1", ["native", "gloo"])
def test_who_comes_by_the_store_hears_of_who_gave_up_in_memory(
    process_world: World, monkeypatch: pytest.MonkeyPatch, backend_of_1: str
) -> None:
    if backend_of_1 == "gloo" and not tr.is_gloo_available():
        pytest.skip("needs torch")
    only_in_store(monkeypatch, 1)

    def body(rank: int) -> None:
        if rank == 1:
            time.sleep(1.0)
        with pytest.raises(tr.CommTimeout) as caught:
            tr.new_group(backend=backend_of_1 if rank else "native", timeout=60.0 if rank else 0.5)
        assert rank == 0 or "as rank 0 found" in str(caught.value)
        tr.barrier()

    check(process_world(2, body, 30.0))


@pytest.mark.torch
def test_torchs_groups_of_a_name_that_failed_once() -> None:
    pytest.importorskip("torch")
    from support.torch_ranks import passed, run_ranks

    def body(rank: int) -> float:
        import torch
        import torch.distributed as dist

        def group(seconds: float) -> Any:
            return dist.new_group(
                [0, 1], timedelta(seconds=seconds), use_local_synchronization=True
            )

        if rank == 0:
            time.sleep(1.5)
        with pytest.raises(tr.CommError):
            group(1.0 if rank else 20.0)
        dist.barrier()
        if rank == 1:
            time.sleep(1.5)
        value = torch.ones(1)
        dist.all_reduce(value, group=group(20.0))
        return float(value)

    assert passed(run_ranks(2, body)) == [2.0, 2.0]


@pytest.mark.torch
def test_torchs_groups_meet_in_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from support.torch_ranks import passed, run_ranks

    made: list[int] = []
    real = backend.NativeBackend.connect

    def connect(*given: Any, **named: Any) -> Any:
        made.append(1)
        return real(*given, **named)

    monkeypatch.setattr(backend.NativeBackend, "connect", connect)

    def body(rank: int) -> tuple[int, float, float]:
        import torch
        import torch.distributed as dist

        mesh, alone = dist.init_device_mesh("cpu", (2, 2)), [dist.new_group([r]) for r in range(4)]
        half = mesh.get_group(1).split_group([rank % 2], group_name="half")
        values = torch.ones(2)
        dist.all_reduce(values[:1], group=mesh.get_group(0))
        dist.all_reduce(values[1:], group=alone[rank])
        assert half.size() == 1
        return len(made), *values.tolist()

    assert passed(run_ranks(4, body)) == [(1, 2.0, 1.0)] * 4
