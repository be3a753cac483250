"""Groups with a backend for each kind of device: native and nccl, whose GPUs are fake ones."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import fake_cupy
from support.fake_gpus import Connect, Ranks, by_device
from support.processes import soon
from support.suite import CASES
from support.suite.cases import LONG

import torsh_runtime as tr
from torsh_runtime.backends.base import Backend, BackendType, ByDevice, ReduceOp
from torsh_runtime.backends.by_device import ByDeviceBackend
from torsh_runtime.backends.intercepting import Intercepting
from torsh_runtime.backends.library.gloo import GlooBackend
from torsh_runtime.backends.nccl.late import LateNcclBackend
from torsh_runtime.backends.operation import Op
from torsh_runtime.backends.work import Work
from torsh_runtime.errors import CommAborted, CommTimeout, PeerLost
from torsh_runtime.store.client import StoreClient

Run = Callable[..., list[Any]]


@pytest.fixture
def run(fake_ranks: Ranks) -> Run:
    """run(body): body(backend) on two ranks."""
    return lambda body: fake_ranks.run(2, body, by_device)


@pytest.fixture(params=["native", pytest.param("gloo", marks=pytest.mark.torch)])
def run_any(fake_ranks: Ranks, request: pytest.FixtureRequest) -> Run:
    """The same with either backend on the host."""
    connect = by_device if request.param == "native" else with_gloo(pytest.importorskip("torch"))
    return lambda body: fake_ranks.run(2, body, connect)


def with_gloo(torch: Any) -> Connect:
    def connect(store: StoreClient, rank: int, count: int, timeout: float) -> ByDeviceBackend:
        sys.modules["torch"] = torch  # which the fake GPUs hide
        host = GlooBackend.connect(store.scoped("cpu/"), rank, count, timeout)
        gpu = LateNcclBackend.connect(store.scoped("cuda/"), rank, count, timeout)
        return ByDeviceBackend(ByDevice(BackendType.GLOO, BackendType.NCCL), host, gpu)

    return connect


def on_gpu(size: int, value: float, dtype: str = "float32") -> Any:
    return fake_cupy.asarray(np.full(size, value, dtype))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.processes])
def test_the_suite_on_arrays_of_the_processor(fake_ranks: Ranks, name: str) -> None:
    fake_ranks.run(2, CASES[name].body, by_device)


def test_who_closes_after_a_failure_on_the_host_tells_the_others_of_that(run: Run) -> None:
    closed = threading.Event()

    def body(backend: ByDeviceBackend) -> None:
        backend.all_reduce(on_gpu(3, 1), ReduceOp.SUM, LONG)
        if backend.rank == 0:
            with pytest.raises(CommTimeout):
                backend.recv(np.zeros(1), 1, 0, 0.2)
            backend.close()
            closed.set()
            return
        assert closed.wait(LONG)
        with pytest.raises(CommTimeout):
            backend.all_reduce(on_gpu(3, 1), ReduceOp.SUM, LONG)
        with pytest.raises(CommTimeout):
            backend.all_reduce(np.zeros(2), ReduceOp.SUM, LONG)

    run(body)


def test_arrays_of_both_kinds_in_turn(run: Run) -> None:
    def body(backend: ByDeviceBackend) -> None:
        for turn in range(3):
            host, gpu = np.full(4, backend.rank + turn), on_gpu(4, backend.rank + 10 * turn)
            backend.all_reduce(host, ReduceOp.SUM, LONG)
            work = backend.all_reduce(gpu, ReduceOp.SUM, LONG, async_op=True)
            backend.barrier(LONG)
            work.wait()
            assert (host == 1 + 2 * turn).all()
            assert (gpu.get() == 1 + 20 * turn).all()
            parts = [on_gpu(2, 0) for _ in range(2)]
            backend.all_gather(parts, on_gpu(2, backend.rank), LONG)
            assert [part.get().tolist() for part in parts] == [[0, 0], [1, 1]]

    run(body)


def test_arrays_of_both_kinds_in_one_call_are_refused_by_name(run: Run) -> None:
    def body(backend: ByDeviceBackend) -> None:
        host, gpu = np.zeros(2, np.float32), on_gpu(2, 0)
        calls: list[tuple[Callable[[], object], str]] = [
            (lambda: backend.all_gather([gpu, host], gpu, LONG), "all_gather: .*outputs"),
            (lambda: backend.all_gather(on_gpu(4, 0), host, LONG), r"outputs has a .*fake_cupy"),
            (lambda: backend.gather([gpu, gpu], host, 0, LONG), r"array has a numpy\.ndarray in"),
            (lambda: backend.scatter(gpu, [host, host], 0, LONG), "scatter: array has a .*GPU"),
            (lambda: backend.reduce_scatter(host, [gpu, gpu], ReduceOp.SUM, LONG), "inputs has"),
            (lambda: backend.all_to_all([gpu, host], [gpu, gpu], LONG), "all_to_all: "),
        ]
        for call, words in calls:
            with pytest.raises(TypeError, match=words):
                call()
        with pytest.raises(TypeError, match=r"not .*list"):
            backend.all_reduce([gpu], ReduceOp.SUM, LONG)
        backend.barrier(LONG)  # the group lives
        backend.all_reduce(gpu, ReduceOp.SUM, LONG)

    run(body)


def test_what_is_launched_together_may_be_of_both_kinds(run: Run) -> None:
    def body(backend: ByDeviceBackend) -> None:
        group = tr.ProcessGroup(backend, LONG)
        arrays = [np.ones(3), np.ones(3), on_gpu(3, 1), np.ones(3), on_gpu(3, 1)]
        tr.all_reduce_coalesced(arrays, group=group)
        peer = 1 - backend.rank
        inbox = [np.zeros(2), on_gpu(2, 0)]
        outbox = [np.full(2, backend.rank), on_gpu(2, backend.rank)]
        with tr.coalesce(group):
            for message in (np.full(2, backend.rank, np.float64), outbox[1]):
                group.send(message, peer)
            for room in inbox:
                group.recv(room, peer)
        got = [*arrays, *inbox]
        host = [array if isinstance(array, np.ndarray) else array.get() for array in got]
        assert [set(array.tolist()) for array in host] == [{2.0}] * 5 + [{float(peer)}] * 2

    run(body)


def test_a_message_goes_where_its_array_is(run: Run) -> None:
    def body(backend: ByDeviceBackend) -> None:
        host, gpu = np.zeros(2, np.float32), on_gpu(2, 0)
        if backend.rank:
            assert backend.recv(host, None, 7, LONG).source == 0
            backend.recv(gpu, 0, 0, LONG)
            assert (host.tolist(), gpu.get().tolist()) == ([1, 1], [2, 2])
        else:
            backend.send(np.full(2, 1, np.float32), 1, 7, LONG)
            backend.send(on_gpu(2, 2), 1, 0, LONG)
            with pytest.raises(ValueError, match="NCCL has no tags"):
                backend.send(gpu, 1, 7, LONG)

    run(body)


def test_a_failure_of_nccl_ends_what_is_under_way_on_the_host(run_any: Run) -> None:
    def body(backend: ByDeviceBackend) -> None:
        if backend.rank:
            with pytest.raises(CommAborted, match="rank 0 aborted"):
                backend.recv(np.zeros(1), 0, 0, LONG)  # which never comes
        else:
            with pytest.raises(CommTimeout):
                backend.all_reduce(on_gpu(3, 1), ReduceOp.SUM, 0.2, async_op=True).wait(LONG)
        assert backend.failed
        with pytest.raises(CommTimeout):
            backend.all_reduce(on_gpu(3, 1), ReduceOp.SUM, LONG)
        with pytest.raises(CommTimeout):
            backend.all_reduce(np.zeros(3), ReduceOp.SUM, LONG)
        with pytest.raises(CommTimeout):
            backend.barrier(LONG)

    run_any(body)


def test_a_failure_on_the_host_ends_what_is_under_way_on_gpus(run_any: Run) -> None:
    def body(backend: ByDeviceBackend) -> None:
        backend.all_reduce(on_gpu(3, 1), ReduceOp.SUM, LONG)  # connects
        if backend.rank:
            work = backend.all_reduce(on_gpu(3, 1), ReduceOp.SUM, LONG, async_op=True)
            with pytest.raises(CommTimeout, match="recv"):
                work.wait(LONG)
        else:
            with pytest.raises(CommTimeout, match="recv"):
                backend.recv(np.zeros(1), 1, 0, 0.2)
            assert soon(lambda: backend.members[1].failed, LONG)
        with pytest.raises(CommTimeout, match="recv"):
            backend.all_reduce(on_gpu(3, 1), ReduceOp.SUM, LONG)
        assert backend.failed

    run_any(body)
    gc.collect()  # Gloo's error holds the frames that it passed, and these the group


def test_callbacks_of_the_host_do_not_run_where_deadlines_are_kept(run_any: Run) -> None:
    over = threading.Event()

    def body(backend: ByDeviceBackend) -> None:
        backend.all_reduce(on_gpu(3, 1), ReduceOp.SUM, LONG)  # connects
        if backend.rank == 0:
            host, gpu = backend.members
            threads: list[str] = []
            work = host.all_reduce(np.zeros(3), ReduceOp.SUM, LONG, async_op=True)
            work.add_done_callback(lambda _: threads.append(threading.current_thread().name))
            host.abort()
            assert soon(lambda: gpu.failed, LONG)
            assert "torsh-nccl" not in threads
            over.set()
        assert over.wait(LONG)

    run_any(body)
    gc.collect()


def test_ranks_that_disagree_on_the_host_hear_so_on_gpus(run: Run) -> None:
    def body(backend: ByDeviceBackend) -> None:
        with pytest.raises(tr.CommMismatch):
            backend.all_reduce(np.zeros(3 + backend.rank), ReduceOp.SUM, LONG)
        with pytest.raises(tr.CommMismatch, match="ranks disagree"):
            backend.all_reduce(on_gpu(3, 1), ReduceOp.SUM, LONG)

    run(body)


@pytest.mark.parametrize("waiting", ["host", "gpu"])
def test_abort_ends_both(run: Run, waiting: str) -> None:
    def body(backend: ByDeviceBackend) -> None:
        backend.barrier(LONG)
        timer = threading.Timer(0.2, backend.abort)
        if backend.rank == 0:
            timer.start()
        array = np.zeros(2) if waiting == "host" else on_gpu(2, 0)
        peer = 1 - backend.rank
        with pytest.raises(CommAborted, match="rank 0 aborted"):
            backend.recv(array, peer, 0, LONG, async_op=True).wait(LONG)
        for other in (np.zeros(2), on_gpu(2, 0)):
            with pytest.raises(CommAborted, match="rank 0 aborted"):
                backend.all_reduce(other, ReduceOp.SUM, LONG)
        timer.join() if backend.rank == 0 else None

    run(body)


@pytest.mark.parametrize("kind", ["host", "gpu"])
def test_a_rank_that_left_is_named(run: Run, kind: str) -> None:
    def body(backend: ByDeviceBackend) -> None:
        backend.barrier(LONG)
        if backend.rank:
            backend.close()
            for array in (np.zeros(2), on_gpu(2, 0)):
                with pytest.raises(CommAborted, match="closed"):
                    backend.all_reduce(array, ReduceOp.SUM, LONG)
            return
        array = np.zeros(2) if kind == "host" else on_gpu(2, 0)
        with pytest.raises(PeerLost) as caught:
            backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True).wait(LONG)
        assert caught.value.rank == 1

    run(body)


def test_what_is_known_of_the_group_is_what_the_host_knows(run: Run) -> None:
    def body(backend: ByDeviceBackend) -> None:
        host, _ = backend.members
        assert backend.facts == host.facts
        assert backend.facts.is_in_node
        assert backend.facts.held_bytes > 0
        backend.barrier(LONG)
        assert backend.all_come(np.zeros(2))
        backend.barrier(LONG)
        assert not backend.all_come(on_gpu(2, 0))  # it waits on its stream

    run(body)


@pytest.mark.parametrize(
    ("stand_in", "left"),
    [
        # Members are named one by one, and further groups of by-device ones meet over the store.
        (ByDeviceBackend, {"name_ranks", "note_as", "subgroup"}),
        (Intercepting, set()),
    ],
)
def test_nothing_that_a_backend_may_do_is_left_to_its_default(
    stand_in: type[Backend], left: set[str]
) -> None:
    of_the_group = {"rank", "world_size", "connect"}
    defaults = {name for name in vars(Backend) if not name.startswith("_")}
    assert defaults - of_the_group - left <= vars(stand_in).keys()


def test_an_intercepted_backend_tells_what_it_knows_itself(run: Run) -> None:
    def body(backend: ByDeviceBackend) -> None:
        stand_in = Counting(backend)
        assert stand_in.facts == backend.facts
        assert (stand_in.rank, stand_in.type) == (backend.rank, backend.type)
        assert stand_in.members == backend.members
        stand_in.all_reduce(on_gpu(2, 1), ReduceOp.SUM, LONG)
        stand_in.barrier(LONG)
        assert stand_in.kinds == ["all_reduce", "barrier"]
        assert stand_in.all_come(np.zeros(2))

    run(body)


class Counting(Intercepting):
    """Notes the kinds of all operations."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.kinds: list[str] = []

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        self.kinds.append(op.kind)
        return op.begin(self._backend, timeout, async_op)
