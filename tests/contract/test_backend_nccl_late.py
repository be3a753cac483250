"""NCCL's communicator of a group is made by the group's first operation on fake GPUs."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import fake_cuda, fake_cupy, fake_graphs, fake_nccl, fake_nccl_ranks
from support.fake_gpus import Jobs, Ranks, by_device, fake_gpus
from support.processes import soon
from support.suite.cases import LONG

import torsh_runtime as tr
from torsh_runtime.backends.base import Backend, ReduceOp
from torsh_runtime.backends.by_device import ByDeviceBackend
from torsh_runtime.backends.library import failure_notifications
from torsh_runtime.backends.library.failure_notifications import Call
from torsh_runtime.backends.nccl import connecting, late
from torsh_runtime.backends.nccl.late import LateNcclBackend
from torsh_runtime.errors import CommAborted, CommError, CommTimeout, PeerLost
from torsh_runtime.job_group import JobGroup
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore

Run = Callable[..., list[Any]]
BOTH = "cpu:native,cuda:nccl"
SOON = 5.0
"""Seconds within which ranks hear of another's failure."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread that was given up stays in NCCL for longer than the test."""
    monkeypatch.setattr(fake_nccl_ranks, "_PATIENCE", 1.0)


@pytest.fixture
def run(fake_ranks: Ranks) -> Run:
    """run(body): body(backend) on two ranks, whose backend is nccl alone."""
    return lambda body, count=2: fake_ranks.run(count, body, LateNcclBackend.connect)


@pytest.fixture
def run_both(fake_ranks: Ranks) -> Run:
    """The same with native beside it."""
    return lambda body: fake_ranks.run(2, body, by_device)


def ones() -> Any:
    return fake_cupy.asarray(np.ones(4, np.float32))


def test_groups_cost_no_communicator_before_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORSH_SHARE_ARRAYS", "0")  # ranks that are threads have one allocator

    def body(group: JobGroup) -> int:
        mesh = tr.DeviceMesh((2, 2), ("a", "b"), group, "cuda")
        groups = [mesh.get_group(axis) for axis in ("a", "b")]
        groups.append(tr.split_group(group, [[0, 3], [1, 2]]))
        for each in (group, *groups):
            each.barrier()
            each.all_gather_numbers(np.array([1]))
        assert not fake_cuda.machine().cliques
        group.barrier()
        groups[1].all_reduce(ones())
        group.barrier()
        return len(fake_cuda.machine().cliques)

    jobs = Jobs()
    results = jobs.run([BOTH] * 4, body)
    jobs.close()
    assert results == [2] * 4, "each of the axis's two groups has one"


def test_who_did_not_come_is_named(run_both: Run) -> None:
    def body(backend: ByDeviceBackend) -> None:
        if backend.rank == 0:
            with pytest.raises(CommTimeout, match=r"rank\(s\) 1 to make NCCL's comm") as caught:
                backend.all_reduce(ones(), ReduceOp.SUM, 0.6)
            assert (caught.value.op, caught.value.missing) == ("all_reduce", (1,))
        else:
            with pytest.raises(CommAborted, match="rank 0"):
                backend.recv(np.zeros(1), 0, 0, LONG)
        for array in (ones(), np.zeros(2)):
            with pytest.raises(CommTimeout, match=r"rank\(s\) 1"):
                backend.all_reduce(array, ReduceOp.SUM, LONG)
        assert backend.failed

    run_both(body)


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("what", ["libraries", "device", "communicator"])
def test_all_name_the_rank_whose_gpu_fails_at_first_use(
    run_both: Run, monkeypatch: pytest.MonkeyPatch, failing: int, what: str
) -> None:
    def broken(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*given: Any, **options: Any) -> Any:
            if fake_cuda.machine().current.number == failing:
                raise RuntimeError("uncorrectable ECC error encountered")
            return call(*given, **options)

        return instead

    if what == "libraries":
        monkeypatch.setattr(late, "load", broken(late.load))
    elif what == "device":
        monkeypatch.setattr(
            fake_cuda.Device, "create_stream", broken(fake_cuda.Device.create_stream)
        )
    else:
        monkeypatch.setattr(fake_nccl.Communicator, "init", broken(fake_nccl.Communicator.init))

    def body(backend: ByDeviceBackend) -> None:
        began = time.monotonic()
        array = ones()
        for _ in range(2):
            with pytest.raises(CommError, match=f"rank {failing} could not join .* ECC error"):
                _reduce_for(SOON, backend, array)
        assert time.monotonic() - began < LONG / 2
        with pytest.raises(CommError, match=f"rank {failing} could not join"):
            backend.barrier(LONG)

    run_both(body)


def test_who_awaits_others_hears_that_the_group_was_aborted(run: Run) -> None:
    def body(backend: LateNcclBackend) -> None:
        if backend.rank == 0:
            threading.Timer(0.3, backend.abort).start()
        else:
            assert soon(lambda: backend._news.look(Call("", 1)) is not None, LONG)
        with pytest.raises(CommAborted, match="rank 0 aborted"):
            backend.all_reduce(ones(), ReduceOp.SUM, LONG)

    run(body)


def test_who_awaits_a_rank_that_leaves_is_told(run: Run) -> None:
    def body(backend: LateNcclBackend) -> None:
        if backend.rank:
            backend.close()
            with pytest.raises(CommAborted, match="closed"):
                backend.all_reduce(ones(), ReduceOp.SUM, LONG)
            return
        with pytest.raises(PeerLost, match="left the group") as caught:
            backend.all_reduce(ones(), ReduceOp.SUM, LONG)
        assert caught.value.rank == 1

    run(body)


def test_who_awaits_others_hears_that_the_host_has_failed(run_both: Run) -> None:
    def body(backend: ByDeviceBackend) -> None:
        if backend.rank:
            with pytest.raises(CommTimeout, match="recv"):
                backend.recv(np.zeros(1), 0, 0, 0.3)
            return
        with pytest.raises(CommTimeout, match="recv"):
            backend.all_reduce(ones(), ReduceOp.SUM, LONG)

    run_both(body)


def test_the_device_is_the_first_arrays_and_the_current_one_stays(run: Run) -> None:
    def body(backend: LateNcclBackend) -> None:
        with fake_cupy.cuda.Device(1 - backend.rank):
            array = ones()
        backend.all_reduce(array, ReduceOp.SUM, LONG)
        with array.device:
            assert (array.get() == 2).all()
        assert fake_cuda.Device().device_id == backend.rank
        with pytest.raises(ValueError, match=f"on CUDA device {backend.rank}"):
            backend.all_reduce(ones(), ReduceOp.SUM, LONG)

    run(body)


def test_later_operations_make_no_detour(run: Run) -> None:
    def body(backend: LateNcclBackend) -> None:
        backend.all_reduce(ones(), ReduceOp.SUM, LONG)
        assert backend.run == backend._parts[None].run
        with backend.coalescing():
            work = backend.all_reduce(ones(), ReduceOp.SUM, LONG, async_op=True)
            with pytest.raises(RuntimeError, match="when its block ends"):
                work.wait()
        backend.close()
        with pytest.raises(CommAborted, match="closed"):
            backend.all_reduce(ones(), ReduceOp.SUM, LONG)

    run(body)


def test_what_nccl_does_not_take_makes_no_communicator(run: Run) -> None:
    def body(backend: LateNcclBackend) -> None:
        if backend.rank:  # alone, and nobody has to come
            with pytest.raises(TypeError, match="use backend 'native'"):
                backend.all_reduce(np.ones(2), ReduceOp.SUM, LONG)
            with pytest.raises(ValueError, match="cannot carry objects"):
                backend.send_object(np.ones(2, np.uint8), 0, 1, LONG)
            assert not fake_cuda.machine().cliques
        backend.all_reduce(ones(), ReduceOp.SUM, LONG)

    run(body)


@pytest.mark.parametrize("first", ["barrier", "numbers", "block", "threads"])
def test_any_operation_may_be_the_first(run: Run, first: str) -> None:
    def body(backend: LateNcclBackend) -> None:
        arrays = [ones(), ones()]
        if first == "barrier":
            backend.barrier(LONG)
        elif first == "numbers":
            assert backend.all_gather_numbers(np.array([backend.rank]), LONG).tolist() == [[0], [1]]
        elif first == "block":
            with backend.coalescing():
                works = [backend.all_reduce(each, ReduceOp.SUM, LONG, True) for each in arrays]
                with pytest.raises(RuntimeError, match="when its block ends"):
                    works[0].wait()
            assert [work.wait() for work in works] == [True, True]
            assert [each.get().tolist() for each in arrays] == [[2] * 4] * 2
        else:
            alike = ones()
            _in_threads(lambda: backend.all_reduce(alike, ReduceOp.MAX, LONG, True).wait(LONG))
        backend.all_reduce(arrays[0], ReduceOp.MAX, LONG)
        assert len(fake_cuda.machine().cliques) == 1

    run(body)


def _reduce_for(seconds: float, backend: Backend, array: Any) -> None:
    """Reduce again and again: of another rank's failure the next operations hear."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        backend.all_reduce(array, ReduceOp.SUM, seconds)
        time.sleep(0.1)


def _in_threads(call: Callable[[], object]) -> None:
    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)


def test_a_communicator_that_is_given_up_is_aborted_once_it_is_there(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    init, over = fake_nccl.Communicator.init, threading.Event()
    made: list[Any] = []

    def slow(*given: Any) -> Any:
        assert over.wait(LONG)
        made.append(init(*given))
        return made[-1]

    monkeypatch.setattr(fake_nccl.Communicator, "init", slow)

    def body(backend: LateNcclBackend) -> None:
        with pytest.raises(CommTimeout, match="NCCL is still connecting"):
            backend.all_reduce(ones(), ReduceOp.SUM, 0.5)
        over.set()
        assert soon(lambda: [each._clique for each in made] == [None, None], SOON)

    run(body)


def test_a_message_takes_its_two_ranks_only(run: Run) -> None:
    over = threading.Event()

    def body(backend: LateNcclBackend) -> None:
        rank, machine = backend.rank, fake_cuda.machine()
        if rank == 1:  # not before the others have done without it
            assert over.wait(LONG)
        for turn in range(3):
            array = ones() if rank == 0 else fake_cupy.zeros(4, np.float32)
            if rank == 0:
                backend.send(array, 2, 0, LONG, async_op=turn == 1).wait()
            elif rank == 2:
                backend.recv(array, 0, 0, LONG)
                assert (array.get() == 1).all()
            if rank != 1 and turn == 1:
                assert len(machine.cliques) == 1
            if turn == 1:
                over.set()
                backend.all_reduce(array, ReduceOp.MAX, LONG)
                assert (array.get() == 1).all()
        assert len(machine.cliques) == 2

    run(body, 3)


@pytest.mark.parametrize("peer", [0, 3])
def test_messages_to_ranks_that_there_are_not_make_nothing(run: Run, peer: int) -> None:
    def body(backend: LateNcclBackend) -> None:
        if backend.rank == 0:
            with pytest.raises(ValueError, match=f"dst={peer}"):
                backend.send(ones(), peer, 0, LONG)
            with pytest.raises(ValueError, match="from anyone"):
                backend.recv(ones(), None, 0, LONG)
        backend.all_reduce(ones(), ReduceOp.SUM, LONG)
        assert len(fake_cuda.machine().cliques) == 1

    run(body, 3)


@pytest.mark.parametrize("connected", [False, True])
def test_a_message_that_does_not_come_ends_the_group_and_names_the_sender(
    run: Run, connected: bool
) -> None:
    def body(backend: LateNcclBackend) -> None:
        rank, array = backend.rank, ones()
        if connected and rank:
            peer = 3 - rank
            call = backend.send if rank == 2 else backend.recv
            call(array, peer, 0, LONG)
        if rank == 1:
            with pytest.raises(CommTimeout, match="recv") as caught:
                backend.recv(array, 2, 0, 0.5, async_op=True).wait(LONG)
            assert caught.value.missing == (2,)
        with pytest.raises(CommTimeout, match=r"recv.* rank\(s\) 2"):
            _reduce_for(LONG, backend, array)
        assert backend.failed

    run(body, 3)


def test_a_failure_of_all_ends_a_message_of_two(run: Run) -> None:
    def body(backend: LateNcclBackend) -> None:
        rank, array = backend.rank, ones()
        if rank:
            (backend.send if rank == 2 else backend.recv)(array, 3 - rank, 0, LONG)
        backend.all_reduce(array, ReduceOp.SUM, LONG)
        if rank == 1:
            pair = backend._parts[2]
            waiting = pair.recv(array, 2, 0, LONG, async_op=True)
            with pytest.raises(CommAborted, match="rank 0 aborted"):
                waiting.wait(LONG)
        elif rank == 0:
            time.sleep(0.3)
            backend.abort()
        else:
            assert soon(lambda: _heard(backend), LONG)

    run(body, 3)


def _heard(backend: LateNcclBackend) -> bool:
    return backend._news.look(Call("", 1)) is not None


_MEMBER = """
import sys, time
from support.fake_gpus import fake_gpus
from torsh_runtime.backends.nccl.late import LateNcclBackend
from torsh_runtime.store.client import StoreClient
with fake_gpus(1):
    LateNcclBackend.connect(StoreClient.connect(sys.argv[1], b"", 60), 1, 2, 60)
    print("in the group", flush=True)
    time.sleep(60)
"""


def test_who_awaits_a_process_that_was_killed_is_told() -> None:
    tests = str(Path(__file__).parents[1])
    with ExitStack() as closing:
        hosted = closing.enter_context(
            HostedStore.start(f"unix:@torsh-test-{secrets.token_hex(8)}", b"")
        )
        member = subprocess.Popen(
            [sys.executable, "-P", "-c", _MEMBER, hosted.endpoint],
            env={**os.environ, "PYTHONPATH": tests},
            stdout=subprocess.PIPE,
            text=True,
        )
        closing.enter_context(member)
        closing.callback(member.kill)
        closing.enter_context(fake_gpus(1))
        client = closing.enter_context(StoreClient.connect(hosted.endpoint, b"", LONG))
        backend = LateNcclBackend.connect(client, 0, 2, LONG)
        closing.callback(backend.close)
        assert member.stdout is not None
        assert member.stdout.readline() == "in the group\n"
        threading.Timer(0.5, member.kill).start()
        with pytest.raises(PeerLost) as caught:
            backend.all_reduce(ones(), ReduceOp.SUM, LONG)
        assert caught.value.rank == 1


@pytest.mark.parametrize("is_made", [False, True])
def test_errors_know_the_job_ranks_of_their_group(
    monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    monkeypatch.setenv("TORSH_SHARE_ARRAYS", "0")  # ranks that are threads have one allocator
    failed = threading.Event()

    def body(group: JobGroup) -> Any:
        part = tr.split_group(group, [[0], [1, 2]])
        if group.rank == 0:
            return None
        if is_made:
            part.all_reduce(ones())
        if group.rank == 2:
            assert failed.wait(LONG)
            return None
        try:
            part._backend.all_reduce(ones(), ReduceOp.SUM, 0.5, async_op=True).wait(LONG)
        except CommTimeout as error:
            return error.missing, error.members
        finally:
            failed.set()

    jobs = Jobs()
    results = jobs.run([BOTH] * 3, body)
    jobs.close()
    assert results == [None, ((1,), (1, 2)), None]


def test_the_first_operation_may_be_captured(run: Run) -> None:
    def body(backend: LateNcclBackend) -> None:
        array, machine = ones(), fake_cuda.machine()
        array.get()
        met.wait(LONG)
        with fake_cupy.cuda.Stream(non_blocking=True):
            queue = fake_cupy.current_queue()
            with machine.capture(queue, fake_graphs.THREAD_LOCAL) as graph:
                backend.all_reduce(array, ReduceOp.SUM, LONG)
            graph.launch(queue)
            assert (array.get() == 2).all()

    met = threading.Barrier(2)
    run(body)


def test_the_first_operation_may_be_captured_in_the_global_mode(fake_ranks: Ranks) -> None:
    def body(backend: LateNcclBackend) -> None:
        stream = fake_cupy.cuda.Stream(non_blocking=True)
        with stream, fake_cuda.machine().capture(fake_cupy.current_queue()):
            backend.barrier(LONG)
        assert not backend.failed

    fake_ranks.run(1, body, LateNcclBackend.connect)


def test_a_failure_of_a_pair_is_no_silent_end_of_what_streams_wait_for(run: Run) -> None:
    over = threading.Event()

    def body(backend: LateNcclBackend) -> None:
        rank, array = backend.rank, ones()
        if rank == 0:
            backend.send(array, 1, 0, LONG)
        if rank == 1:
            backend.recv(array, 0, 0, LONG)
        backend.all_reduce(array, ReduceOp.SUM, LONG)
        array.get()
        if rank:
            assert over.wait(LONG)
            return
        whole, pair = backend._parts[None], backend._parts[1]
        backend.all_reduce(array, ReduceOp.SUM, LONG)  # which a stream waits for
        pair.recv(ones(), 1, 0, 0.3, async_op=True)
        assert soon(lambda: whole.failed, LONG)
        assert soon(lambda: whole.unreported is not None, 1.0)
        over.set()
        with pytest.raises(CommTimeout, match="recv"):
            backend.all_reduce(array, ReduceOp.SUM, LONG)
        assert whole.unreported is None

    run(body, 3)


def test_a_driver_that_hangs_while_it_is_loaded_delays_no_deadline(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(late, "await_loaded", lambda: over.wait(LONG))

    def body(backend: LateNcclBackend) -> None:
        with pytest.raises(CommTimeout, match="whether the GPUs' driver hangs"):
            backend.all_reduce(ones(), ReduceOp.SUM, 0.3)

    run(body)
    over.set()


def test_a_second_threads_deadline_is_kept_while_the_first_one_waits_for_peers(run: Run) -> None:
    over = threading.Event()

    def body(backend: LateNcclBackend) -> None:
        if backend.rank == 1:
            assert over.wait(LONG)
            return
        machine = fake_cuda.machine()
        gpu, errors = machine.current, list[CommError]()

        def first() -> None:
            machine.current = gpu
            with pytest.raises(CommTimeout) as caught:
                backend.all_reduce(ones(), ReduceOp.SUM, LONG)
            errors.append(caught.value)

        thread = threading.Thread(target=first)
        thread.start()
        assert soon(lambda: backend._making[None].locked())
        with pytest.raises(CommTimeout, match="another thread of this process"):
            backend.all_reduce(ones(), ReduceOp.SUM, 0.3)
        thread.join(LONG)
        over.set()
        assert len(errors) == 1, "the group has ended for both"

    run(body)


def test_a_silent_store_delays_the_first_operations_deadline_little(
    fake_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_notifications, "_PATIENCE", 0.5)
    monkeypatch.setattr(connecting, "_PATIENCE", 0.5)
    over = threading.Event()

    def body(backend: LateNcclBackend) -> None:
        if backend.rank == 0:
            began = time.monotonic()
            with fake_ranks.silent_store(), pytest.raises(CommError):
                backend.all_reduce(ones(), ReduceOp.SUM, 1.0)
            assert time.monotonic() - began < LONG / 2
            over.set()
        assert over.wait(LONG)

    fake_ranks.run(2, body, LateNcclBackend.connect)


def test_a_communicator_that_nobody_needs_is_freed_without_holding_up_others(run: Run) -> None:
    begun, over = threading.Event(), threading.Event()

    class Unneeded:
        def abort(self) -> None:  # as memory is freed when the GPU has nothing to do
            begun.set()
            assert over.wait(LONG)

    def body(backend: LateNcclBackend) -> None:
        backend.abort()
        nothing: Any = None
        made: Any = Unneeded()

        def adopt() -> None:
            with pytest.raises(CommError, match="was given up"):
                backend._adopt(nothing, nothing, made, None)

        thread = threading.Thread(target=adopt)
        thread.start()
        assert begun.wait(LONG)
        began = time.monotonic()
        backend.close()
        assert time.monotonic() - began < LONG / 2
        over.set()
        thread.join(LONG)

    run(body, 1)
