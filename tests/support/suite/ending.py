"""How groups end: closed, aborted, left alone, late."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from support.suite.cases import LONG, Suite

from torsh_runtime.backends.base import Backend, ReduceOp
from torsh_runtime.errors import CommAborted, CommError, CommTimeout, PeerLost

SUITE = Suite()


@SUITE.case()
def a_closed_group_says_so(backend: Backend) -> None:
    backend.barrier(LONG)
    backend.close()
    backend.close()
    with pytest.raises(CommAborted, match="closed"):
        backend.barrier(LONG)


@SUITE.case(ranks=2)
def a_missing_rank_is_named_at_the_deadline(backend: Backend) -> None:
    backend.barrier(LONG)
    if backend.rank == 1:
        time.sleep(3.0)
        with pytest.raises(CommError):
            _until_it_fails(backend)
        return
    with pytest.raises(CommTimeout) as caught:
        backend.all_reduce(np.zeros(3), ReduceOp.SUM, 1.0)
    assert caught.value.missing == (1,)
    assert (caught.value.op, caught.value.seconds) == ("all_reduce", 1.0)
    assert backend.failed


@SUITE.case(ranks=2)
def a_message_that_never_comes_is_missed(backend: Backend) -> None:
    if backend.rank == 0:
        with pytest.raises(CommTimeout) as caught:
            backend.recv(np.zeros(3), 1, 0, 0.5)
        assert caught.value.missing == (1,)
    else:
        with pytest.raises(CommError):
            backend.recv(np.zeros(3), 0, 0, LONG)


@SUITE.case(ranks=2)
def a_rank_that_left_is_named(backend: Backend) -> None:
    backend.barrier(LONG)
    last = backend.world_size - 1
    if backend.rank == last:
        return backend.close()
    with pytest.raises(PeerLost) as caught:
        backend.barrier(LONG)
    assert caught.value.rank == last
    return None


@SUITE.case(ranks=2)
def abort_from_another_thread_ends_everyone(backend: Backend) -> None:
    backend.barrier(LONG)
    timer = threading.Timer(0.2, backend.abort)
    if backend.rank == 0:
        timer.start()
    with pytest.raises(CommAborted, match="rank 0 aborted"):
        backend.recv(np.zeros(1), (backend.rank + 1) % backend.world_size, 0, LONG)
    if backend.rank == 0:
        timer.join()


@SUITE.case(ranks=2)
def a_dead_group_stays_dead(backend: Backend) -> None:
    with pytest.raises(CommTimeout):
        backend.recv(np.zeros(1), (backend.rank + 1) % backend.world_size, 0, 0.3)
    for _ in range(3):
        with pytest.raises(CommTimeout):
            backend.barrier(LONG)
        with pytest.raises(CommTimeout):
            backend.all_reduce(np.zeros(3), ReduceOp.SUM, LONG, async_op=True).wait()


@SUITE.case(ranks=2)
def an_operation_under_way_ends_with_the_group(backend: Backend) -> None:
    work = backend.recv(
        np.zeros(3), (backend.rank + 1) % backend.world_size, 0, LONG, async_op=True
    )
    backend.barrier(LONG)
    if backend.rank == 0:
        backend.abort()
    with pytest.raises(CommAborted, match="rank 0 aborted"):
        work.wait()
    assert work.done()
    assert isinstance(work.exception(), CommAborted)


@SUITE.case(ranks=2, processes=True)
def ctrl_c_ends_the_wait_and_the_group(backend: Backend) -> None:
    backend.barrier(LONG)
    if backend.rank == 0:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            backend.recv(np.zeros(1), 1, 0, LONG)
        timer.join()
        assert backend.failed
    else:
        with pytest.raises(CommAborted, match="rank 0 was interrupted"):
            backend.barrier(LONG)


def a_killed_rank_is_named(backend: Backend) -> None:
    """The last rank dies of it, so this is for a world of its own."""
    backend.barrier(LONG)
    last = backend.world_size - 1
    if backend.rank == last:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerLost) as caught:
        backend.all_reduce(np.zeros(3), ReduceOp.SUM, LONG)
    assert caught.value.rank == last


def _until_it_fails(backend: Backend) -> None:
    for _ in range(20):
        backend.barrier(LONG)
