"""Groups made by several calls, made smaller, and found by their names, as in torch.distributed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from support.launcher import Launcher

import torsh_runtime as tr

World = Callable[..., list[Any]]


def check(results: list[Any]) -> None:
    for rank, result in enumerate(results):
        assert result is None, f"rank {rank}: {getattr(result.error, 'trace', result)}"


def summed(group: tr.ProcessGroup | None = None) -> float:
    """What an all_reduce of ranks + 1 gives."""
    value = np.array([tr.get_rank() + 1.0])
    tr.all_reduce(value, group=group)
    return float(value[0])


def test_subgroups(process_world: World) -> None:
    def body(rank: int) -> None:
        own, both = tr.new_subgroups(2)
        assert own is both[rank // 2]
        assert [tr.get_process_group_ranks(group) for group in both] == [[0, 1], [2, 3]]
        assert both[1 - rank // 2] == tr.GroupMember.NON_GROUP_MEMBER
        assert own != tr.GroupMember.NON_GROUP_MEMBER
        assert summed(own) == (3 if rank < 2 else 7)
        everyone, groups = tr.new_subgroups()  # of a node
        assert (summed(everyone), len(groups)) == (10, 1)
        own, groups = tr.new_subgroups_by_enumeration([[3, 0], [2]])
        assert (own is None) == (rank == 1)
        assert tr.get_pg_count() == (4 if own else 3)
        if own:
            assert summed(own) == (3 if rank == 2 else 5)
        with pytest.raises(tr.ConfigError, match="divide"):
            tr.new_subgroups(3)
        with pytest.raises(tr.ConfigError, match="two"):
            tr.new_subgroups_by_enumeration([[0, 1], [1, 2]])
        tr.barrier()

    check(process_world(4, body, 30.0))


def test_split_group_and_the_order_of_ranks(process_world: World) -> None:
    def body(rank: int) -> None:
        backwards = tr.new_group([2, 1, 0], sort_ranks=False)
        assert tr.get_rank(backwards) == 2 - rank
        part = tr.split_group(backwards, [[1, 0], [2]])  # of its own ranks
        assert part is not None
        assert tr.get_process_group_ranks(part) == ([0] if rank == 0 else [1, 2])
        assert summed(part) == (1 if rank == 0 else 5)
        rest = tr.split_group(split_ranks=[[0, 2]])
        assert (rest is None) == (rank == 1)
        assert rest is None or summed(rest) == 4
        with pytest.raises(tr.ConfigError, match="split_ranks"):
            tr.split_group()
        tr.barrier()

    check(process_world(3, body, 30.0))


def test_a_group_goes_on_without_a_rank_that_died(process_world: World) -> None:
    def body(rank: int) -> Any:
        inner = tr.new_group()
        summed(inner)
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(tr.PeerLost):
            summed(inner)
        with pytest.raises(tr.PeerLost):
            summed()
        assert summed(tr.shrink_group([2], inner)) == 7
        smaller = tr.shrink_group([2], shrink_flags=1)
        assert smaller is tr.group.WORLD is tr.GroupMember.WORLD
        place = [0, 1, None, 2][rank]
        assert (tr.get_rank(), tr.get_world_size()) == (place, 3)
        assert summed() == 6
        pair = tr.new_group([1, 2])
        assert pair.rank < 0 or summed(pair) == 5
        if place:
            with pytest.raises(tr.ConfigError, match="serves the store"):
                tr.shrink_group([0])
        tr.barrier()
        return place

    results = process_world(4, body, 30.0)
    assert [results[0], results[1], results[3]] == [0, 1, 2], getattr(results[0], "error", None)
    assert "SIGKILL" in str(results[2].error)


def test_under_torshrun_rank_0_may_be_the_one_that_died(torshrun: Launcher) -> None:
    torshrun.script("""
        import numpy as np, torsh_runtime as tr
        tr.init_process_group(timeout=30)
        tr.barrier()
        if rank == 0:
            os._exit(0)
        try:
            tr.barrier()
            raise SystemExit("rank 0 was not missed")
        except tr.PeerLost as error:
            assert error.rank == 0
        tr.shrink_group([0])
        value = np.ones(1)
        tr.all_reduce(value)
        print(f"{tr.get_rank()} of {tr.get_world_size()}: {value[0]:g}")
    """)
    code, out, err = torshrun.run("--nproc-per-node", "3", "train.py")
    assert code == 0, err
    assert sorted(line[-9:] for line in out.splitlines()) == ["0 of 2: 2", "1 of 2: 2"]


@pytest.mark.torch
@pytest.mark.skipif(not find_spec("torch"), reason="needs torch")
@pytest.mark.parametrize("native", [0, 1])
def test_ranks_that_want_different_backends(process_world: World, native: int) -> None:
    def body(rank: int) -> None:
        with pytest.raises(tr.TorshError) as caught:
            tr.new_group(backend="native" if rank == native else "gloo", timeout=5)
        assert rank == 0 or "give all ranks of a group the same" in str(caught.value)
        assert summed() == 3

    check(process_world(2, body, 30.0))


def test_ranks_that_cannot_be_excluded(process_world: World) -> None:
    def body(rank: int) -> None:
        for wrong in ([], [0, 1], [5], [1, 1]):
            with pytest.raises(tr.ConfigError, match="ranks_to_exclude"):
                tr.shrink_group(wrong)
        with pytest.raises(tr.ConfigError, match=r"only the ranks that stay|serves the store"):
            tr.shrink_group([0])
        with pytest.raises(tr.ConfigError, match="shrink_flags"):
            tr.shrink_group([1 - rank], shrink_flags=7)
        assert summed() == 3

    check(process_world(2, body, 30.0))


def test_coalesced_operations(process_world: World) -> None:
    def body(rank: int) -> None:
        n = tr.get_world_size()
        arrays = [np.full(size, rank + 1.0) for size in (1, 5, 40_000)]
        tr.all_reduce_coalesced(arrays)
        assert all((array == n * (n + 1) / 2).all() for array in arrays)
        work = tr.all_reduce_coalesced(arrays, tr.ReduceOp.MAX, async_op=True)
        assert work is not None
        assert work.get_future().wait(30) == arrays
        inputs = [np.full(2, rank), np.full(3, 10 + rank)]
        outputs = [[np.empty(2, int), np.empty(3, int)] for _ in range(n)]
        tr.all_gather_coalesced(outputs, inputs)
        for peer, (first, second) in enumerate(outputs):
            assert (first.tolist(), second.tolist()) == ([peer] * 2, [10 + peer] * 3)
        with pytest.raises(ValueError, match="output_tensor_lists"):
            tr.all_gather_coalesced(outputs[:1], inputs)

    check(process_world(2, body, 30.0))


def test_what_asynchronous_calls_give(process_world: World) -> None:
    def body(rank: int) -> None:
        n, own = tr.get_world_size(), np.full(3, rank + 1.0)
        scaled = tr.all_reduce(own, tr.ReduceOp.PREMUL_SUM(0.5), async_op=True)
        assert scaled is not None
        assert scaled.get_future().wait()[0] is own
        assert own.tolist() == [n * (n + 1) / 4] * 3
        rows = [np.empty(3) for _ in range(n)]
        gathered = tr.all_gather(rows, own, async_op=True)
        assert gathered is not None
        assert gathered.wait()
        assert all(got is row for got, row in zip(gathered.result(), rows, strict=True))
        table = np.empty((n, 3))
        tr.all_gather_single(table, own)
        tr.reduce_scatter_single(own, table)
        room = np.empty(3)
        coming = tr.irecv(room, (rank - 1) % n)
        tr.send(own, (rank + 1) % n)
        assert coming.get_future().wait(30)[0] is room
        assert coming.source_rank() == (rank - 1) % n

    check(process_world(3, body, 30.0))
