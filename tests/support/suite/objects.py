"""Bytes of any size between two ranks, and several collectives as one operation."""

from __future__ import annotations

import numpy as np
import pytest
from support.suite.cases import LONG, Suite

from torsh_runtime.backends.base import Backend, BackendType, Envelope, ReduceOp

SUITE = Suite()


@SUITE.case(ranks=2)
def objects_come_in_whatever_size(backend: Backend) -> None:
    after, before = _neighbours(backend)
    for size in (0, 1, 100, 40_000, 3_000_000):
        content = np.full(size, backend.rank, np.uint8)
        comes = backend.recv_object(before, 5, LONG, async_op=True)
        backend.send_object(content, after, 5, LONG)
        assert comes.wait()
        assert comes.source == before
        assert comes.content.dtype == np.uint8
        assert comes.content.shape == (size,)
        assert (comes.content == before).all()


@SUITE.case(ranks=2)
def objects_and_messages_never_meet(backend: Backend) -> None:
    after, before = _neighbours(backend)
    array = np.zeros(3, np.uint8)
    backend.send_object(np.full(3, 1, np.uint8), after, 0, LONG)
    backend.send(np.full(3, 2, np.uint8), after, 0, LONG)
    backend.recv(array, before, 0, LONG)
    assert array.tolist() == [2, 2, 2]
    assert backend.recv_object(before, 0, LONG).content.tolist() == [1, 1, 1]


@SUITE.case(ranks=2)
def tags_keep_objects_apart(backend: Backend) -> None:
    after, before = _neighbours(backend)
    for tag in (7, 8, 7, 9):
        backend.send_object(np.full(tag, tag, np.uint8), after, tag, LONG)
    for tag in (9, 7, 8, 7):
        assert backend.recv_object(before, tag, LONG).content.tolist() == [tag] * tag


@SUITE.case(ranks=2)
def many_objects_are_under_way_at_a_time(backend: Backend) -> None:
    peers = [rank for rank in range(backend.world_size) if rank != backend.rank]
    come = [
        backend.recv_object(peer, number, LONG, async_op=True)
        for number in range(50)
        for peer in peers
    ]
    sent = [
        backend.send_object(np.full(number, backend.rank, np.uint8), peer, number, LONG, True)
        for number in reversed(range(50))
        for peer in peers
    ]
    for work in (*sent, *come):
        assert work.wait()
    assert [work.content.size for work in come[:: len(peers)]] == list(range(50))
    assert all((work.content == work.source).all() for work in come)


@SUITE.case(ranks=2)
def objects_from_anyone_say_who_sent_them(backend: Backend) -> None:
    if backend.rank:
        backend.send_object(np.full(backend.rank, backend.rank, np.uint8), 0, 4, LONG)
        return
    come = [backend.recv_object(None, 4, LONG) for _ in range(1, backend.world_size)]
    assert sorted(work.source or 0 for work in come) == list(range(1, backend.world_size))
    assert all(work.content.tolist() == [work.source] * (work.source or 0) for work in come)


@SUITE.case(ranks=2)
def a_probe_tells_of_a_message_and_leaves_it(backend: Backend) -> None:
    after, before = _neighbours(backend)
    if backend.type in (BackendType.GLOO, BackendType.NCCL):
        for wait in (True, False):
            with pytest.raises(ValueError, match="cannot look for messages"):
                backend.probe(before, 4, LONG, wait)
        return
    assert backend.probe(before, 4, LONG, wait=False) is None
    backend.barrier(LONG)
    backend.send(np.arange(5), after, 4, LONG)
    found = [backend.probe(before, 4, LONG), backend.probe(before, 4, LONG, wait=False)]
    assert found == [Envelope(source=before, tag=4, num_bytes=40)] * 2
    array = np.zeros(5, np.int64)
    backend.recv(array, before, 4, LONG)
    assert array.tolist() == [0, 1, 2, 3, 4]
    assert backend.probe(before, 4, LONG, wait=False) is None
    backend.barrier(LONG)  # a peer that has left would be what the last probe finds


@SUITE.case()
def several_collectives_are_one_operation(backend: Backend) -> None:
    before, first, second, after = np.ones(10), np.ones(10), np.ones(1000), np.ones(20)

    def both() -> None:
        backend.all_reduce(first, ReduceOp.SUM, LONG)
        backend.all_reduce(second, ReduceOp.SUM, LONG)
        second[:] += first[0]

    works = [
        backend.all_reduce(before, ReduceOp.SUM, LONG, async_op=True),
        backend.in_order(both, async_op=True),
        backend.all_reduce(after, ReduceOp.SUM, LONG, async_op=True),
    ]
    for work in works:
        assert work.wait()
    assert (second == 2 * backend.world_size).all()
    assert (before == backend.world_size).all()
    assert (after == backend.world_size).all()


@SUITE.case()
def what_an_operation_of_several_raises_its_wait_raises(backend: Backend) -> None:
    def fails() -> None:
        backend.barrier(LONG)
        raise KeyError("a mistake of the caller's")

    with pytest.raises(KeyError, match="the caller's"):
        backend.in_order(fails, async_op=True).wait()
    backend.barrier(LONG)


def _neighbours(backend: Backend) -> tuple[int, int]:
    ranks = backend.world_size
    return (backend.rank + 1) % ranks, (backend.rank - 1) % ranks
