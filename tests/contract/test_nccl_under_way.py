"""What NCCL operations under way cost and hold, and what is captured in graphs, on fake GPUs."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
from support import fake_cuda, fake_cupy, fake_graphs, fake_nccl
from support.fake_gpus import Jobs, Ranks
from support.suite.cases import LONG

from torsh_runtime.backends.base import BackendType, ReduceOp
from torsh_runtime.backends.library import failure_notifications
from torsh_runtime.backends.library.failure_notifications import Call
from torsh_runtime.backends.nccl import device
from torsh_runtime.backends.nccl.backend import NcclBackend
from torsh_runtime.backends.nccl.flights import Flight
from torsh_runtime.backends.work import Work
from torsh_runtime.errors import CommAborted, CommTimeout
from torsh_runtime.job_group import JobGroup
from torsh_runtime.store.client import StoreClient

Run = Callable[..., list[Any]]
MIB = 1 << 20


@pytest.fixture
def run(fake_ranks: Ranks) -> Run:
    """run(body): body(backend) on two ranks."""
    return lambda body, count=2: fake_ranks.run(count, body)


def full(size: int, value: float, dtype: str = "float32") -> Any:
    return fake_cupy.asarray(np.full(size, value, dtype))


def long_kernel() -> threading.Event:
    """Keep the current stream busy until the event is set."""
    over = threading.Event()
    fake_cuda.machine().put(fake_cupy.current_queue(), over.is_set)
    return over


def mine() -> int:
    """The bytes that the program holds on the current device."""
    machine = fake_cuda.machine()
    return machine.bytes_alive(machine.current)


def soon(test: Callable[[], bool]) -> bool:
    limit = time.monotonic() + LONG
    while not test() and time.monotonic() < limit:
        time.sleep(0.01)
    return test()


@contextmanager
def counted(owner: Any, name: str) -> Iterator[Counter[int]]:
    """Count the calls of a method or property by device."""
    counts: Counter[int] = Counter()
    real = vars(owner)[name]

    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts[self._gpu.number] += 1
        return (real.fget if isinstance(real, property) else real)(self, *args, **kwargs)

    setattr(owner, name, property(count) if isinstance(real, property) else count)
    try:
        yield counts
    finally:
        setattr(owner, name, real)


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_nothing_is_held_once_the_stream_waits(run: Run, dtype: str) -> None:
    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        before = mine()
        over = long_kernel()
        for _ in range(200):
            array = full(MIB // 16, 1, dtype)
            work = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
            work.wait()
            del array, work
        for _ in range(20):
            backend.all_reduce(full(MIB // 16, 1, dtype)[::2], ReduceOp.SUM, LONG)
        assert mine() == before
        over.set()
        last = full(4, 1)
        backend.all_reduce(last, ReduceOp.SUM, LONG)
        assert (last.get() == 2).all()

    run(body)


def test_what_no_stream_waits_for_is_held_until_it_is_done(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        before, over = mine(), long_kernel()
        for _ in range(5):
            backend.all_reduce(full(100, 1), ReduceOp.SUM, LONG, async_op=True)
        assert mine() == before + 5 * 400
        over.set()
        assert soon(lambda: mine() == before)

    run(body)


def test_what_another_stream_waits_for_is_held_until_it_is_done(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        before, over = mine(), long_kernel()
        array = full(100, 1)
        work = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
        with fake_cupy.cuda.Stream(non_blocking=True):
            work.wait()
        del array, work
        assert mine() == before + 400
        over.set()
        assert soon(lambda: mine() == before)

    run(body)


def test_a_work_keeps_its_result_and_source(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        array, peer = full(4, backend.rank), 1 - backend.rank
        work = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True).giving([array])
        work.wait()
        del array
        with backend.coalescing():
            backend.send(full(4, 7), peer, 0, LONG, async_op=True)
            received = backend.recv(full(4, 0), peer, 0, LONG, async_op=True)
        received.wait()
        assert soon(work.done)
        assert (work.result()[0].get() == 1).all()
        assert received.wait(LONG)
        assert received.source == peer

    run(body)


def test_memory_is_readable_for_what_its_stream_had_got(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        array = full(5, 1)
        backend._communicator.allreduce(array, array, fake_nccl.SUM, stream=0)
        del array
        fake_cuda.Device().sync()

    run(body)


def test_calls_ask_no_event_and_create_none(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        array = full(4, 1)

        def many() -> None:
            over = long_kernel()
            for _ in range(200):
                backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True).wait()
            over.set()
            assert soon(lambda: not backend._flights)

        backend.barrier(LONG)
        many()
        backend.barrier(LONG)
        with (
            counted(fake_cuda.Event, "is_done") as asked,
            counted(fake_cuda.Device, "create_event") as created,
        ):
            many()
            assert asked[backend._device] <= 2 * 200
            assert not created[backend._device]
        backend.barrier(LONG)

    run(body)


def test_a_call_takes_few_functions() -> None:
    def body(group: JobGroup) -> int:
        array = full(4, 1)
        group.all_reduce(array)
        called: list[str] = []

        def note(frame: Any, event: str, _: Any) -> None:
            if event == "call" and "torsh_runtime" in frame.f_code.co_filename:
                called.append(frame.f_code.co_qualname)

        gate = long_kernel()
        group.all_reduce(array, async_op=True)  # the watcher is awake
        sys.setprofile(note)
        group.all_reduce(array, async_op=True)
        sys.setprofile(None)
        gate.set()
        assert len(called) <= 15, called
        return len(called)

    jobs = Jobs()
    try:
        assert isinstance(jobs.run(["cpu:native,cuda:nccl"], body)[0], int)
    finally:
        jobs.close()


def test_one_thread_watches_all_groups_and_sleeps_between_operations(fake_ranks: Ranks) -> None:
    def body(backend: NcclBackend) -> None:
        other = fake_ranks.connect(BackendType.NCCL, "other", backend.rank, (0, 1), LONG)
        other.barrier(LONG)
        backend.barrier(LONG)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("torsh-nccl") == 1
        assert soon(lambda: backend._watcher.is_asleep)
        other.close()

    fake_ranks.run(2, body)


def test_deadlines_count_from_when_the_gpu_comes_to_an_operation(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        over = long_kernel()
        array = full(4, 1)
        work = backend.all_reduce(array, ReduceOp.SUM, 0.4, async_op=True)
        time.sleep(0.8)
        over.set()
        assert work.wait(LONG)
        assert not backend.failed

    run(body)


def test_a_gpu_that_does_not_come_to_an_operation_is_named(run: Run) -> None:
    def body(backend: NcclBackend) -> str:
        backend.barrier(LONG)
        stuck = long_kernel() if backend.rank == 1 else threading.Event()
        array = full(4, 1)
        work = backend.all_reduce(array, ReduceOp.SUM, 1.0, async_op=True)
        with pytest.raises(TimeoutError) as caught:
            work.wait(LONG)
        stuck.set()
        assert caught.value.missing == (1,)
        return str(caught.value)

    for text in run(body, 3):
        assert "the GPU of rank(s) 1 has not come to it" in text


def test_a_rank_that_connects_has_come_to_an_operation(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        if backend.rank == 2:
            assert soon(lambda: backend._news.look(Call("all_reduce", 0)) is not None)
            return
        with pytest.raises(TimeoutError) as caught:
            backend.all_reduce(full(4, 1), ReduceOp.SUM, 1.0)
        assert caught.value.missing == (2,)
        assert "the GPU of" not in str(caught.value)

    run(body, 3)


def test_a_gpu_that_never_comes_to_an_operation_ends_the_group(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        stuck = long_kernel()
        work = backend.all_reduce(full(4, 1), ReduceOp.SUM, 0.2, async_op=True)
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="this rank's GPU has not come to it") as caught:
            work.wait(LONG)
        assert time.monotonic() - began > 0.7
        stuck.set()
        assert len(caught.value.missing) == 1

    run(body)


def test_the_groups_stream_goes_before_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    real = fake_cuda.Device.create_stream

    def create(self: Any, obj: Any = None, options: Any = None) -> Any:
        asked.append(options.priority)
        return real(self, obj, options)

    monkeypatch.setattr(fake_cuda.Device, "create_stream", create)
    run(lambda backend: None)
    assert asked == [-1, -1]


@pytest.mark.parametrize("mode", [fake_graphs.GLOBAL, fake_graphs.THREAD_LOCAL])
def test_a_captured_operation_runs_when_the_graph_is_replayed(run: Run, mode: int) -> None:
    def body(backend: NcclBackend) -> None:
        array, machine = full(4, 1), fake_cuda.machine()
        backend.all_reduce(array, ReduceOp.SUM, LONG)
        backend.barrier(LONG)
        with fake_cupy.cuda.Stream(non_blocking=True):
            queue = fake_cupy.current_queue()
            with turn, machine.capture(queue, mode) as graph:
                backend.all_reduce(array, ReduceOp.SUM, LONG)
                work = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
                assert work.done()
                work.wait()
                with backend.coalescing():
                    last = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
                last.wait()
            backend.barrier(LONG)
            for _ in range(3):
                graph.launch(queue)
            assert (array.get() == 2.0**10).all()
        assert not backend.failed

    turn = threading.Lock()  # one process has one capture at a time here; ranks are processes
    run(body)


def test_a_capture_beside_what_is_under_way_ends_neither(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        over = long_kernel()
        array = full(4, 1)
        work = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
        work.wait()
        stream = fake_cupy.cuda.Stream(non_blocking=True)
        with stream, turn, fake_cuda.machine().capture(fake_cupy.current_queue()):
            over.set()
            time.sleep(0.2)  # the watcher looks around
            work.done()
        assert work.wait(LONG)
        assert not backend.failed

    turn = threading.Lock()
    run(body)


def test_the_fake_refuses_what_captures_forbid(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        machine, stream = fake_cuda.machine(), fake_cuda.Device().create_stream()
        event, queue = stream.record(), machine.queue(stream.handle)
        other = fake_cuda.Device().create_stream()
        with (
            pytest.raises(fake_cuda.CUDAError, match="INVALIDATED"),
            machine.capture(queue),
            pytest.raises(fake_cuda.CUDAError, match="a stream is capturing"),
        ):
            event.sync()
        unjoined = pytest.raises(fake_cuda.CUDAError, match="UNJOINED")
        with unjoined, machine.capture(queue):
            other.wait(stream.record())
            other.record()
        with pytest.raises(fake_cuda.CUDAError, match="default stream"):
            machine.capture(machine.current.default).__enter__()

    run(body, 1)


def counts_of_calls(run: Run, body: Callable[[NcclBackend], None]) -> Counter[str]:
    """What NCCL was asked for on rank 0."""
    called: Counter[str] = Counter()
    real = fake_nccl.Communicator._add

    def add(self: Any, kind: str, *args: Any, **facts: Any) -> None:
        if self._rank == 0:
            called[kind] += 1
        real(self, kind, *args, **facts)

    fake_nccl.Communicator._add = add  # type: ignore[method-assign]
    try:
        run(body)
    finally:
        fake_nccl.Communicator._add = real  # type: ignore[method-assign]
    return called


@pytest.mark.parametrize("place", ["one", "apart", "other"])
def test_lists_of_equal_parts_are_one_operation(run: Run, place: str) -> None:
    def parts(value: Any) -> list[Any]:
        whole = fake_cupy.asarray(np.asarray(value, np.float32))
        if place == "one":
            return [whole[:3], whole[3:]]
        pieces = [whole[:3].copy(), whole[3:].copy()]
        return pieces if place == "apart" else [whole[:3], pieces[1]]

    def body(backend: NcclBackend) -> None:
        outputs = parts([0] * 6)
        backend.all_gather(outputs, full(3, backend.rank + 1), LONG)
        assert [each.get().tolist() for each in outputs] == [[1] * 3, [2] * 3]
        room = full(3, 0)
        backend.reduce_scatter(room, parts([1, 2, 3, 4, 5, 6]), ReduceOp.SUM, LONG)
        assert room.get().tolist() == [[2, 4, 6], [8, 10, 12]][backend.rank]

    assert counts_of_calls(run, body) == {"allgather": 1, "reduce_scatter": 1}


def test_lists_of_unequal_parts_are_messages_and_reductions(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        outputs = [full(3, 0), full(1, 0)]
        backend.all_gather(outputs, full(3 - 2 * backend.rank, backend.rank + 1), LONG)
        assert [each.get().tolist() for each in outputs] == [[1] * 3, [2]]

    assert counts_of_calls(run, body) == {"send": 2, "recv": 2}


def test_a_callback_may_begin_an_operation(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        array, begun = full(4, 1), threading.Event()

        def go_on(_: Work) -> None:
            works.append(backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True))
            begun.set()

        works: list[Work] = []
        work = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
        work.add_done_callback(go_on)
        assert begun.wait(LONG)
        works[0].wait()
        assert (array.get() == 4).all()

    run(body)


def test_operations_of_streams_that_depend_on_the_thread_are_held(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        flight = Flight("all_reduce", 1, operands=[1], followed=(2,), end=backend._own.arrival)
        stream = backend._own.caller(fake_cupy.current_queue().handle)
        backend._own.callers[2] = stream
        assert backend._flights.hold_back(flight, {2})
        assert flight.operands == [1]

    run(body, 1)


def test_callbacks_that_fail_or_wait_harm_no_operation(run: Run) -> None:
    failed = threading.Event()

    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        called: list[int] = []

        def wait(work: Work) -> None:
            called.append(1)
            work.wait()  # raises the failure
            raise KeyError

        values = full(4, 1.0)
        work = backend.all_reduce(values, ReduceOp.SUM, LONG, async_op=True)
        work.add_done_callback(lambda _: sys.exit(3))
        work.add_done_callback(wait)
        assert soon(lambda: called == [1])
        backend.barrier(LONG)
        assert not backend.failed
        if backend.rank == 1:
            assert failed.wait(LONG)
            return
        work = backend.all_reduce(values, ReduceOp.SUM, 0.3, async_op=True)
        work.add_done_callback(wait)
        work.wait()
        values.get()  # the stream goes on, as NCCL was aborted
        assert soon(lambda: called == [1, 1])
        failed.set()
        with pytest.raises(CommTimeout, match="waiting for rank"):
            backend.barrier(LONG)

    run(body)


def test_a_callback_that_never_ends_holds_up_no_deadline(run: Run) -> None:
    over = threading.Event()

    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        work = backend.all_reduce(full(4, 1.0), ReduceOp.SUM, LONG, async_op=True)
        work.add_done_callback(lambda _: over.wait(LONG))
        backend.barrier(LONG)
        if backend.rank == 0:
            with pytest.raises(CommTimeout):
                backend.barrier(0.3)
            over.set()
        assert over.wait(LONG)

    run(body)


def test_operations_of_other_threads_do_not_get_into_a_block(run: Run) -> None:
    def body(backend: NcclBackend) -> tuple[list[float], list[float]]:
        backend.barrier(LONG)
        ours, others, machine = full(1, 1.0), full(1, 2.0), fake_cuda.machine()
        gpu, begun = machine.current, threading.Event()

        def reduce() -> None:
            machine.current = gpu
            begun.set()
            backend.all_reduce(others, ReduceOp.SUM, LONG)
            found.append(others.get().tolist())

        found: list[list[float]] = []
        thread = threading.Thread(target=reduce)
        with backend.coalescing():
            thread.start()
            begun.wait(LONG)
            time.sleep(0.05)
            work = backend.all_reduce(ours, ReduceOp.SUM, LONG, async_op=True)
        thread.join(LONG)
        work.wait()
        return ours.get().tolist(), *found

    assert run(body) == [([2.0], [4.0])] * 2


def test_copies_of_a_captured_operation_live_as_long_as_its_graph(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        array, machine = full(4, 1, "int16"), fake_cuda.machine()
        backend.all_reduce(array, ReduceOp.SUM, LONG)
        backend.barrier(LONG)
        with fake_cupy.cuda.Stream(non_blocking=True):
            queue = fake_cupy.current_queue()
            with turn, machine.capture(queue) as graph:
                backend.all_reduce(array, ReduceOp.SUM, LONG)
            backend.barrier(LONG)
            machine.reuse()
            for _ in range(2):
                graph.launch(queue)
            assert (array.get() == 2**3).all()

    turn = threading.Lock()
    run(body)


@pytest.mark.parametrize("has_own_memory", [False, True])
def test_arrays_of_a_captured_operation_are_held_until_the_stream_waits(
    run: Run, monkeypatch: pytest.MonkeyPatch, has_own_memory: bool
) -> None:
    monkeypatch.setattr(device._Cupy, "gives_graphs_memory", has_own_memory)

    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        stream = fake_cupy.cuda.Stream(non_blocking=True)
        with stream, turn, fake_cuda.machine().capture(fake_cupy.current_queue()):
            before = mine()
            works = [
                backend.all_reduce(fake_cupy.empty(MIB, "uint8"), ReduceOp.SUM, LONG, async_op=True)
                for _ in range(2)
            ]
            assert mine() - before == 2 * MIB
            works.pop().wait()
            del works[:]
            assert mine() - before == (0 if has_own_memory else 2 * MIB)

    turn = threading.Lock()
    run(body)


def test_a_barrier_can_be_captured(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        stream = fake_cupy.cuda.Stream(non_blocking=True)
        with stream, turn, fake_cuda.machine().capture(fake_cupy.current_queue()):
            backend.barrier(LONG)
        assert not backend.failed

    turn = threading.Lock()
    run(body)


def test_an_operation_beside_a_capture_of_its_group_is_refused(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        array, other = full(4, 1), full(4, 1)
        backend.barrier(LONG)
        stream = fake_cupy.cuda.Stream(non_blocking=True)
        with stream, turn, fake_cuda.machine().capture(fake_cupy.current_queue()):
            backend.all_reduce(array, ReduceOp.SUM, LONG)
            with (
                fake_cupy.cuda.Stream(non_blocking=True),
                pytest.raises(ValueError, match="are being captured in a CUDA graph"),
            ):
                backend.all_reduce(other, ReduceOp.SUM, LONG)
        backend.all_reduce(other, ReduceOp.SUM, LONG)
        assert (other.get() == 2).all()

    turn = threading.Lock()
    run(body)


def test_the_default_stream_is_refused_during_a_capture_that_it_waits_for(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        array, machine = full(4, 1), fake_cuda.machine()
        backend.barrier(LONG)
        queue = machine.new_queue(machine.current, blocking=True)
        with (
            turn,
            machine.capture(queue, fake_graphs.THREAD_LOCAL),
            pytest.raises(ValueError, match="default stream cannot be used"),
        ):
            backend.all_reduce(array, ReduceOp.SUM, LONG)
        backend.barrier(LONG)
        assert not backend.failed

    turn = threading.Lock()
    run(body)


def test_a_store_that_does_not_answer_delays_no_deadline(
    fake_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither that of a group whose peers' notes are being read, nor that of another one."""
    monkeypatch.setattr(failure_notifications, "_PATIENCE", 1.0)
    real, over, threads = StoreClient._ask, threading.Event(), set()

    def ask(self: StoreClient, call: Any) -> Any:
        threads.add(threading.current_thread().name)
        return real(self, call)

    def body(backend: NcclBackend) -> None:
        other = fake_ranks.connect(BackendType.NCCL, "other", backend.rank, (0, 1), LONG)
        with closing(other):
            backend.barrier(LONG)
            other.barrier(LONG)
            if backend.rank == 0:
                with fake_ranks.silent_store():
                    backend.all_reduce(full(4, 1), ReduceOp.SUM, LONG, async_op=True)
                    assert soon(lambda: backend._is_reading)
                    work = other.all_reduce(full(4, 1), ReduceOp.SUM, 0.5, async_op=True)
                    with pytest.raises(CommTimeout, match="job's store does not answer"):
                        work.wait(20)
                over.set()
            assert over.wait(LONG)
            backend.abort()

    monkeypatch.setattr(StoreClient, "_ask", ask)
    fake_ranks.run(2, body)
    assert "torsh-nccl-notes" in threads
    assert "torsh-nccl" not in threads


def beside(work: Callable[[], None]) -> threading.Thread:
    """Start a thread with the calling thread's device."""
    machine = fake_cuda.machine()
    gpu = machine.current

    def run() -> None:
        machine.current = gpu
        work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_an_abort_frees_those_who_wait_for_another_threads_block(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        ours, others, waits = full(4, 1), full(4, 1), threading.Event()

        def reduce() -> None:
            waits.set()
            with pytest.raises(CommAborted):
                backend.all_reduce(others, ReduceOp.SUM, LONG)

        def launch() -> None:
            with backend.coalescing():
                backend.all_reduce(ours, ReduceOp.SUM, LONG, async_op=True)
                thread = beside(reduce)
                assert waits.wait(LONG)
                beside(backend.abort).join(LONG)
                thread.join(LONG / 2)
                assert not thread.is_alive()

        with pytest.raises(CommAborted):
            launch()

    run(body)


def test_the_deadline_of_an_operation_is_kept_while_another_thread_has_a_block(run: Run) -> None:
    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        others = full(4, 1)

        def reduce() -> None:
            with pytest.raises(CommTimeout, match="another thread of this process has had a block"):
                backend.all_reduce(others, ReduceOp.SUM, 0.3)

        with backend.coalescing():
            thread = beside(reduce)
            thread.join(LONG / 2)
            assert not thread.is_alive()
        assert backend.failed

    run(body)


@pytest.mark.parametrize("is_block", [False, True])
def test_a_block_does_not_defer_another_groups_operations(
    fake_ranks: Ranks, is_block: bool
) -> None:
    def body(backend: NcclBackend) -> None:
        other = fake_ranks.connect(BackendType.NCCL, "other", backend.rank, (0, 1), LONG)
        with closing(other):
            other.barrier(LONG)
            ours, others = full(4, 1), full(4, 1)
            with backend.coalescing():
                backend.all_reduce(ours, ReduceOp.SUM, LONG, async_op=True)
                with other.coalescing() if is_block else nullcontext():
                    work = other.all_reduce(others, ReduceOp.SUM, LONG, async_op=True)
                work.wait()
                assert (others.get() == 2).all()
                with backend.coalescing():
                    last = backend.all_reduce(ours, ReduceOp.SUM, LONG, async_op=True)
            last.wait()
            assert (ours.get() == 4).all()

    fake_ranks.run(2, body)
