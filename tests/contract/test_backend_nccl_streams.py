"""What an NCCL group does with streams, devices and handles, seen with fake GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import fake_cuda, fake_cupy, fake_nccl
from support.fake_gpus import Ranks, fake_gpus
from support.ports import free_address
from support.suite.cases import LONG

import torsh_runtime as tr
from torsh_runtime.backends import registry
from torsh_runtime.backends.base import BackendType, PremulSum, ReduceOp
from torsh_runtime.backends.nccl.backend import NcclBackend
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.authenticated_pickle import AuthenticatedPickle
from torsh_runtime.comm.groups import split
from torsh_runtime.comm.registry import GroupRegistry
from torsh_runtime.errors import CommAborted, CommError

Run = Callable[..., list[Any]]


@pytest.fixture
def run(fake_ranks: Ranks) -> Run:
    """run(body): body(backend) on two ranks."""
    return lambda body, count=2: fake_ranks.run(count, body)


def full(size: int, value: float, dtype: str = "float32") -> Any:
    return fake_cupy.asarray(np.full(size, value, dtype))


def test_the_callers_stream_does_not_wait_for_the_peers(run: Run) -> None:
    went_on = threading.Event()

    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        if backend.rank == 1:
            assert went_on.wait(LONG), "rank 0 waits for this one"
        array = full(100, 1)
        work = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
        if backend.rank == 0:
            other = full(100, 5)
            other /= 2
            assert (other.get() == 2.5).all()
            went_on.set()
        work.wait()
        assert (array.get() == 2).all()

    run(body)


def test_an_operation_waits_for_what_the_callers_stream_has(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        with fake_cupy.cuda.Stream(non_blocking=True):
            array = full(100, 8)
            array /= 2
            work = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
        assert work.wait(LONG)
        assert (array.contents == 8).all()

    run(body)


def test_wait_holds_back_the_stream_that_is_current_then(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        array = full(100, 1)
        work = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
        with fake_cupy.cuda.Stream(non_blocking=True):
            work.wait()
            copied = array.copy()
            assert (copied.get() == 2).all()

    run(body)


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_arrays_of_the_groups_device_may_be_used_while_another_is_current(
    run: Run, dtype: str
) -> None:
    def body(backend: NcclBackend) -> None:
        own = backend.rank
        wide, part = full(60, own + 1, dtype)[::2], full(15, 0, dtype)
        with fake_cupy.cuda.Device(1 - own), fake_cupy.cuda.Stream():
            backend.all_reduce(wide, ReduceOp.AVG, LONG)
            backend.reduce_scatter(part, wide, ReduceOp.SUM, LONG)
            backend.barrier(LONG)
            work = backend.all_reduce(wide, ReduceOp.SUM, LONG, async_op=True)
            assert work.wait()
            assert fake_cuda.Device().device_id == 1 - own
        assert (wide.get() == (3 if dtype == "float32" else 2)).all()
        assert (part.get() == (3 if dtype == "float32" else 2)).all()

    run(body)


def test_operations_may_begin_in_a_thread_that_has_not_used_cuda_yet(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        array = full(20, 1)
        begun: list[Work] = []
        thread = threading.Thread(
            target=lambda: begun.append(backend.all_reduce(array, ReduceOp.SUM, LONG, True))
        )
        thread.start()
        thread.join()
        begun[0].wait()
        assert (array.get() == 2).all()

    run(body)


def test_arrays_of_another_device_are_refused(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        with fake_cupy.cuda.Device(1 - backend.rank):
            array = full(5, 1)
        with pytest.raises(ValueError, match=f"on CUDA device {1 - backend.rank}"):
            backend.all_reduce(array, ReduceOp.SUM, LONG)
        backend.barrier(LONG)  # the group lives

    run(body)


def test_scaled_sums_leave_nothing_behind(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        array = full(10, 1)
        for root in (0, 1) * 10:
            backend.all_reduce(array, PremulSum(0.5), LONG)
            backend.reduce(array, root, PremulSum(1.0), LONG)
            backend.reduce_scatter(full(5, 0), array, PremulSum(1.0), LONG)
        assert backend._communicator._resources == []

    run(body)


@pytest.mark.parametrize("factor", [None, "2", 1j, np.ones(2)])
def test_a_factor_that_is_no_number_is_the_callers_mistake_alone(run: Run, factor: Any) -> None:
    def body(backend: NcclBackend) -> None:
        with pytest.raises(TypeError, match="must be a number"):
            backend.all_reduce(full(4, 1), PremulSum(factor), LONG)
        backend.barrier(LONG)  # the group lives

    run(body)


def test_factors_of_numpy_are_numbers(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        array = full(4, 1)
        backend.all_reduce(array, PremulSum(np.float32(1.5)), LONG)
        backend.all_reduce(array, PremulSum(np.int64(2)), LONG)  # type: ignore[arg-type]
        assert (array.get() == 12).all()

    run(body)


def test_a_group_can_be_split(fake_ranks: Ranks) -> None:
    def body(backend: NcclBackend) -> list[int]:
        session = GroupRegistry(backend.rank, 3, fake_ranks.connect, AuthenticatedPickle(b""))
        everyone = session.group("", range(3), BackendType.NCCL, LONG)
        mine = split(backend.rank % 2, key=-backend.rank, group=everyone)
        none = split(None if backend.rank else 1, group=everyone)
        assert mine is not None
        assert (none is None) == bool(backend.rank)
        array = full(3, backend.rank + 1)
        mine.all_reduce(array)
        assert (array.get() == (2 if backend.rank == 1 else 4)).all()
        session.close()
        return list(mine.ranks)

    assert fake_ranks.run(3, body) == [[2, 0], [1], [2, 0]]


def test_a_device_chooses_both_and_is_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_NVIDIA_DRIVER", (Path("/"),))
    with fake_gpus(2) as machine:
        whole = tr.init_process_group(
            init_method=free_address(), world_size=1, rank=0, device_id=1, timeout=LONG
        )
        try:
            for group in (whole, tr.new_group([0]), tr.split(0)):
                assert group is not None
                assert group.backend == "cpu:native,cuda:nccl"
                array = full(4, 3)
                assert array.device.id == 1
                group.all_reduce(array, ReduceOp.AVG)
                assert (array.get() == 3).all()
        finally:
            tr.destroy_process_group()
    assert not machine.faults


def test_messages_in_one_block_pass_each_other(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        peer = 1 - backend.rank
        received, last = full(50, -1)[::2], full(4, -1)
        with backend.coalescing():
            works = [
                backend.send(full(25, backend.rank), peer, 0, LONG, async_op=True),
                backend.send(full(4, 7), peer, 0, LONG, async_op=True),
                backend.recv(received, peer, 0, LONG, async_op=True),
                backend.recv(last, peer, 0, LONG, async_op=True),
            ]
        for work in works:
            work.wait()
        assert (received.get() == peer).all()
        assert (last.get() == 7).all()

    run(body)


def test_a_block_that_cannot_be_launched_ends_the_group(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        with pytest.raises(CommError, match="stream"), backend.coalescing():  # noqa: PT012
            work = backend.all_reduce(full(3, 1), ReduceOp.SUM, LONG, async_op=True)
            backend._own.stream.close()
        with pytest.raises(CommError):
            work.wait()
        assert backend.failed

    run(body)


def test_who_connects_hears_that_the_group_has_ended(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        if backend.rank == 0:
            backend.abort()
        else:
            with pytest.raises(CommAborted, match="rank 0 aborted"):
                backend.all_reduce(full(3, 1), ReduceOp.SUM, 1000.0)

    run(body)


def test_who_launches_a_block_hears_that_the_group_has_ended(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        if backend.rank == 0:
            backend.abort()
        else:
            with pytest.raises(CommAborted, match="rank 0 aborted"), backend.coalescing():
                backend.all_reduce(full(3, 1), ReduceOp.SUM, 1000.0, async_op=True)

    run(body)


def test_groups_that_wait_on_one_gpu_are_aborted_one_after_the_other(fake_ranks: Ranks) -> None:
    def body(backend: NcclBackend) -> None:
        others = [
            fake_ranks.connect(BackendType.NCCL, name, backend.rank, (0, 1), LONG)
            for name in ("there", "back")
        ]
        for each in others:
            each.barrier(LONG)
        if backend.rank == 0:
            for each in others:
                each.all_reduce(full(3, 1), ReduceOp.SUM, 1000.0, async_op=True)
            for each in others:
                each.abort()
        backend.barrier(LONG)
        for each in others:
            each.close()

    fake_ranks.run(2, body)


def test_calls_that_differ_are_an_error_of_nccl(fake_ranks: Ranks) -> None:
    def body(backend: NcclBackend) -> None:
        work = backend.all_reduce(full(3 + backend.rank, 1), ReduceOp.SUM, 5.0, async_op=True)
        with pytest.raises(CommError, match="internal error"):
            work.wait(LONG)

    with pytest.raises(AssertionError, match="calls differ"):
        fake_ranks.run(2, body)


def test_memory_that_is_free_already_is_noticed(fake_ranks: Ranks) -> None:
    def body(backend: NcclBackend) -> None:
        stream = fake_cuda.Device().create_stream()
        array = full(5, 1)
        backend._communicator.allreduce(array, array, fake_nccl.SUM, stream=stream)
        del array
        stream.sync()

    with pytest.raises(AssertionError, match="not allocated"):
        fake_ranks.run(2, body)


def test_the_fake_refuses_what_cuda_refuses(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        stream = fake_cuda.Device().create_stream()
        with (
            fake_cupy.cuda.Device(1 - backend.rank),
            pytest.raises(fake_cuda.CUDAError, match="an event of device"),
        ):
            stream.record()
        event = stream.record()
        stream.close()
        with pytest.raises(fake_cuda.CUDAError, match="no stream"):
            stream.wait(event)
        with pytest.raises(fake_nccl.NCCLError, match="no group"):
            fake_nccl.group_end()

    run(body)
