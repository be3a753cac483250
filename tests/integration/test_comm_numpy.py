"""What programs for MPI expect: out of place, counts and displacements, scans, requests."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
from support.suite.cases import DTYPES, dtype_of, values
from support.suite.references import check_reduced, reductions

import torsh_runtime as tr

World = Callable[..., list[Any]]


def out_of_place(rank: int) -> None:
    n = tr.get_world_size()
    source = np.arange(6.0).reshape(2, 3) + rank
    source.flags.writeable = False
    wanted = n * np.arange(6.0).reshape(2, 3) + n * (n - 1) / 2
    target = np.empty((3, 4))[:, :2]
    tr.all_reduce_into(target, source)
    assert target.ravel().tolist() == wanted.ravel().tolist()
    work = tr.all_reduce_into(target, source, tr.ReduceOp.MAX, async_op=True)
    assert work is not None
    assert work.get_future().wait(30)[0] is target
    assert (target.reshape(2, 3) == np.arange(6.0).reshape(2, 3) + n - 1).all()
    for root in range(n):
        result = np.empty((2, 3)) if rank == root else None
        tr.reduce_into(result, source, root)
        assert result is None or (result == wanted).all()
    assert (source == np.arange(6.0).reshape(2, 3) + rank).all()
    for wrong in (np.empty(6, np.float32), np.empty(7)):
        with pytest.raises(ValueError, match="output"):
            tr.all_reduce_into(wrong, source)
    if n > 1:
        with pytest.raises(ValueError, match="output"):
            tr.reduce_into(np.empty(6), source, (rank + 1) % n)
    tr.barrier()


def scans_of_every_dtype(rank: int) -> None:
    n = tr.get_world_size()
    for dtype in DTYPES:
        for op in reductions(dtype):
            if op is tr.ReduceOp.AVG:
                continue
            for size in (1, 2, 1003):
                inputs = [values(peer, size, dtype) for peer in range(n)]
                array = np.empty(size, dtype_of(dtype))
                tr.scan_into(array, inputs[rank], op)
                if rank or isinstance(op, tr.PremulSum):
                    check_reduced(array, inputs[: rank + 1], op)
                else:
                    assert array.tobytes() == inputs[0].tobytes()
                tr.exscan_into(array, inputs[rank], op)
                if rank > 1:
                    check_reduced(array, inputs[:rank], op)
                elif not isinstance(op, tr.PremulSum):
                    assert array.tobytes() == inputs[0].tobytes()


def scans(rank: int) -> None:
    n = tr.get_world_size()
    grid = np.zeros((40, 50))
    grid[::2, ::3] = rank + 1
    tr.scan(grid[::2, ::3])
    assert (grid[::2, ::3] == sum(range(1, rank + 2))).all()
    assert not grid[1::2].any()
    counts = np.array([rank + 10])
    tr.exscan(counts)  # where this rank's part begins, which the first knows
    assert counts[0] == (sum(range(10, 10 + rank)) if rank else 10)
    product = np.array([2 + rank])
    tr.scan(product, tr.ReduceOp.PRODUCT)
    assert product[0] == reduce(lambda a, b: a * b, range(2, 3 + rank))
    with pytest.raises(ValueError, match="AVG"):
        tr.scan(grid, tr.ReduceOp.AVG)
    with pytest.raises(TypeError, match=r"datetime64\[s\]"):
        tr.scan(np.zeros(3, "datetime64[s]"))
    with pytest.raises(RuntimeError, match="coalesce"), tr.coalesce():
        tr.scan(grid)
    group = tr.new_group(range(n)[::-1], sort_ranks=False)
    tr.scan(own := np.array([rank + 1.0]), group=group)
    assert own[0] == sum(range(rank + 1, n + 1))
    tr.barrier()


def counts_and_displacements(rank: int) -> None:
    n = tr.get_world_size()
    counts = [peer + 1 for peer in range(n)]
    places = [sum(counts[peer + 1 :]) + 2 * (n - 1 - peer) for peer in range(n)]  # backwards
    table = np.full((sum(counts) + 2 * n, 2), -1)
    tr.all_gather(tr.parts(table, counts, places), np.full((rank + 1, 2), rank))
    for peer in range(n):
        assert (table[places[peer] : places[peer] + counts[peer]] == peer).all()
    assert (table == -1).all(1).sum() == 2 * n
    own = np.empty((rank + 1, 2), int)
    tr.scatter(own, tr.parts(table, counts, places) if rank == 0 else None)
    assert (own == rank).all()
    sent, got = np.repeat(np.arange(n), counts), np.empty(n * (rank + 1), int)
    tr.all_to_all(tr.parts(got, [rank + 1] * n), tr.parts(sent, counts))
    assert (got == rank).all()
    for wrong in ([n + 1000], [-1]):
        with pytest.raises(ValueError, match="counts"):
            tr.parts(table, wrong)
    with pytest.raises(ValueError, match="displacements"):
        tr.parts(table, [1], [len(table)])
    with pytest.raises(TypeError):
        tr.parts(7, [1])


def rings(rank: int) -> None:
    n = tr.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    for size in (1, 1 << 18):  # the longer ones wait for who receives them
        got = np.empty(size)
        assert tr.sendrecv(got, np.full(size, float(rank)), right, left) == left
        assert (got == left).all()
        assert tr.sendrecv(got, np.full(size, rank + 0.5), left, tag=3) == right
        assert (got == right + 0.5).all()


def requests_that_are_started_again(rank: int) -> None:
    n = tr.get_world_size()
    total = np.empty(5)
    request = tr.persistent(tr.all_reduce, total, op=tr.ReduceOp.MAX)
    with pytest.raises(RuntimeError, match="start"):
        request.wait()
    for step in range(20):
        total[:] = rank + step
        assert request.start().wait(30)
        assert (total == n - 1 + step).all()
    assert request.is_success()
    assert request.result()[0] is total
    with pytest.raises(ValueError, match="isend"):
        tr.persistent(tr.send, total, 0)
    if n == 1:
        return
    halo, edge = np.empty(3), np.empty(3)
    exchange = [
        tr.persistent(tr.irecv, halo, (rank - 1) % n),
        tr.persistent(tr.isend, edge, (rank + 1) % n),
    ]
    for step in range(20):
        edge[:] = 100 * rank + step
        tr.start_all(exchange)
        tr.waitall(exchange, 30)
        assert (halo == 100 * ((rank - 1) % n) + step).all()
        assert exchange[0].source_rank() == (rank - 1) % n


def waiting_for_one_of_several(rank: int) -> None:
    n = tr.get_world_size()
    if rank == 0:
        rooms = [np.zeros(1) for _ in range(n)]
        works = [None, *(tr.irecv(rooms[peer], peer) for peer in range(1, n))]
        if n > 1:
            with pytest.raises(tr.CommTimeout, match="still under way"):
                tr.waitany(works, 0.01)
        order = []
        for peer in range(n - 1, 0, -1):  # each is let go when the one before has come
            tr.send(np.zeros(1), peer)
            order.append(tr.waitany(works, 30))
            works[order[-1]] = None
        assert order == list(range(n - 1, 0, -1))
        assert [room[0] for room in rooms[1:]] == list(range(1, n))
        with pytest.raises(ValueError, match="nothing"):
            tr.waitany(works)
        tr.waitall(works)
    else:
        tr.recv(np.zeros(1), 0)
        tr.send(np.full(1, float(rank)), 0)
    tr.barrier()


BODIES = [
    out_of_place,
    scans_of_every_dtype,
    scans,
    counts_and_displacements,
    rings,
    requests_that_are_started_again,
    waiting_for_one_of_several,
]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_over_native(process_world: World, body: Callable[[int], None], ranks: int) -> None:
    for rank, result in enumerate(process_world(ranks, body, 30.0)):
        assert result is None, f"rank {rank}: {getattr(result.error, 'trace', result)}"


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_with_one_rank(body: Callable[[int], None]) -> None:
    tr.init_process_group(None, "tcp://127.0.0.1:1", 30.0, 1, 0)
    try:
        body(0)
    finally:
        tr.destroy_process_group()


def test_the_failure_of_one_of_several_ends_the_waiting(process_world: World) -> None:
    told, tell = os.pipe()

    def body(rank: int) -> None:
        tr.barrier()
        if rank == 1:
            tr.destroy_process_group()
            tr.init_process_group("single", "tcp://127.0.0.1:1", 1.0, 1, 0)
            os.read(told, 1)  # it lives until the others know
            return
        with pytest.raises(tr.PeerLost):
            tr.waitany([tr.irecv(np.zeros(1), 1, tag=tag) for tag in range(3)])
        os.write(tell, b"!")

    for rank, result in enumerate(process_world(2, body, 5.0)):
        assert result is None, f"rank {rank}: {getattr(result.error, 'trace', result)}"
    os.close(told)
    os.close(tell)
