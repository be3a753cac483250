"""Groups of several devices as programs make them: "cpu:native,cuda:nccl", with fake GPUs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import fake_cuda, fake_cupy
from support.fake_gpus import Jobs, fake_gpus
from support.forked import Raised
from support.ports import free_address
from support.suite.cases import LONG

import torsh_runtime as tr
from torsh_runtime import job
from torsh_runtime.backends import registry
from torsh_runtime.backends.base import BackendType
from torsh_runtime.backends.library import failure_notifications
from torsh_runtime.backends.nccl import late
from torsh_runtime.backends.registry import is_available
from torsh_runtime.comm.choosing import backend_type, chosen_type
from torsh_runtime.errors import BackendUnavailable, CommAborted, CommError, ConfigError
from torsh_runtime.job_group import JobGroup

BOTH = "cpu:native,cuda:nccl"


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    monkeypatch.setenv("TORSH_SHARE_ARRAYS", "0")  # ranks that are threads have one allocator
    jobs = Jobs()
    yield jobs
    jobs.close()


def check(results: Sequence[Any]) -> None:
    for result in results:
        if isinstance(result, Raised):
            raise result.error


def sums(group: tr.ProcessGroup) -> tuple[float, float]:
    """What all_reduces of ones give, on the processor and on the GPU."""
    host, gpu = np.ones(2), fake_cupy.asarray(np.ones(2, np.float32))
    group.all_reduce(host)
    group.all_reduce(gpu)
    return float(host[0]), float(gpu.get()[0])


def test_the_order_of_the_names_makes_no_difference(jobs: Jobs) -> None:
    def body(group: JobGroup) -> None:
        assert (tr.get_backend(group), tr.get_backend_config(group)) == (BOTH, BOTH)
        assert sums(group) == (2, 2)

    check(jobs.run([BOTH, "cuda:nccl,cpu:native"], body))


@pytest.mark.parametrize("backend", [BOTH, "nccl"])
def test_nobody_has_to_go_first_on_gpus(jobs: Jobs, backend: str) -> None:
    def body(group: JobGroup) -> None:
        other = 1 - group.rank
        own = fake_cupy.asarray(np.full(3, group.rank, np.int32))
        theirs = fake_cupy.asarray(np.full(3, 7, np.int32))
        assert tr.sendrecv(theirs, own, other, other, group) == other
        assert theirs.get().tolist() == [other] * 3
        with pytest.raises(ValueError, match="no tags"):
            tr.sendrecv(theirs, own, other, other, group, tag=3)

    check(jobs.run([backend] * 2, body))


def test_objects_and_barriers_go_over_the_processor(jobs: Jobs) -> None:
    def body(group: JobGroup) -> None:
        everyone: list[Any] = [None, None]
        tr.all_gather_object(everyone, {"rank": group.rank}, group)
        assert everyone == [{"rank": 0}, {"rank": 1}]
        tr.all_gather_object(everyone, group.rank, group, async_op=True).wait()
        assert everyone == [0, 1]
        tr.monitored_barrier(group)
        tr.barrier(group, device_ids=[group.rank])
        message = ["hello"] if group.rank else [None]
        if group.rank:
            tr.send_object_list(message, 0, group)
        else:
            assert tr.recv_object_list(message, None, group) == 1
        assert message == ["hello"]
        shared = tr.empty_shared(4, "float64", group)
        shared[:] = 1
        group.all_reduce(shared)
        assert (shared == 2).all()

    check(jobs.run([BOTH, BOTH], body))


@pytest.mark.parametrize("call", ["numbers", "barrier", "objects"])
def test_exchanges_on_the_processors_wait_for_no_kernel(jobs: Jobs, call: str) -> None:
    def body(group: JobGroup) -> float:
        sums(group)
        over = threading.Event()
        fake_cuda.machine().put(fake_cupy.current_queue(), over.is_set)  # a kernel under way
        work = group.all_reduce(fake_cupy.asarray(np.ones(2, np.float32)), async_op=True)
        work.wait()
        began = time.monotonic()
        if call == "numbers":
            assert group.all_gather_numbers(np.array([group.rank])).tolist() == [[0], [1]]
        elif call == "barrier":
            group.barrier()
        else:
            tr.all_gather_object([None, None], "any", group)
        assert not work.is_completed()
        held = time.monotonic() - began
        over.set()
        return held

    kind = chosen_type(None, 0)
    results = jobs.run([str(kind)] * 2, body, timeout=3.0)
    check(results)
    assert max(results) < 1.0, "the processor waited for the GPU"


def test_groups_made_of_it_have_both(jobs: Jobs) -> None:
    def body(group: JobGroup) -> None:
        half = tr.split(group.rank // 2, group=group)
        pair = tr.split_group(group, [[0, 3], [2, 1]])
        plain = tr.split_group(group, [[0, 1, 2, 3]], backend="native")
        assert half is not None
        assert pair is not None
        assert plain is not None
        assert [tr.get_backend(each) for each in (half, pair, plain)] == [BOTH, BOTH, "native"]
        assert [sums(each) for each in (group, half, pair)] == [(4, 4), (2, 2), (2, 2)]
        with pytest.raises(TypeError, match="collectives on CPUs"):
            plain.all_reduce(fake_cupy.asarray(np.ones(2)))

    check(jobs.run([BOTH] * 4, body))


def test_a_group_of_native_may_make_one_of_both(jobs: Jobs) -> None:
    def body(group: JobGroup) -> None:
        both = tr.split_group(group, [[1, 0]], backend=BOTH)
        assert both is not None
        assert sums(both) == (2, 2)
        assert both.rank == 1 - group.rank

    check(jobs.run(["native", "native"], body))


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_a_mesh_of_either_device_has_both(jobs: Jobs, device_type: str) -> None:
    def body(group: JobGroup) -> None:
        mesh = tr.DeviceMesh((2, 2), ("a", "b"), group, device_type, {"b": "cpu:native"})
        assert mesh.flatten().get_group() is group
        assert sums(mesh.get_group("a")) == (2, 2)
        assert tr.get_backend(mesh.get_group("b")) == "native"

    check(jobs.run([BOTH] * 4, body))


def test_a_group_stays_one_of_both_when_it_is_configured(jobs: Jobs) -> None:
    def body(group: JobGroup) -> None:
        group.configure(group.store(), "", 1 - group.rank, 2, 1)
        assert sums(group) == (2, 2)
        assert tr.get_backend(group) == BOTH

    check(jobs.run([BOTH, BOTH], body))


def test_a_group_stays_one_of_both_when_it_shrinks(jobs: Jobs) -> None:
    def body(group: JobGroup) -> None:
        if group.rank == 1:
            return
        smaller = group.shrunk([0, 2])
        assert sums(smaller) == (2, 2)
        smaller.close()

    check(jobs.run([BOTH] * 3, body))


@pytest.mark.parametrize("backend", [BOTH, "nccl"])
@pytest.mark.parametrize("again", ["configure", "shrink"])
@pytest.mark.parametrize("how", ["leaves", "dies"])
def test_survivors_go_on_with_a_fresh_communicator(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, backend: str, again: str, how: str
) -> None:
    dead: set[int] = set()
    facts, over = failure_notifications._own_facts, threading.Barrier(3)
    own = lambda: {**facts(), "pid": fake_cuda.machine().current.number}  # noqa: E731
    monkeypatch.setattr(failure_notifications, "_own_facts", own)
    monkeypatch.setattr(failure_notifications, "_has_ended", lambda member: member["pid"] in dead)

    def body(group: JobGroup) -> None:
        on_gpu(group)
        if group.rank == 2:
            dead.update({2} if how == "dies" else set())
            if how == "leaves":
                group._own_backend.close()
            over.wait(LONG)
            return
        stuck = fake_cupy.asarray(np.ones(2, np.float32))
        group.all_reduce(stuck)  # the stream waits for rank 2
        with pytest.raises(tr.PeerLost) as caught:
            reduce_until_it_fails(group)
        assert caught.value.rank == 2
        stuck.get()  # the stream goes on
        if again == "configure":
            group.configure(group.store(), "", group.rank, 2, 7)
            assert on_gpu(group) == 2
        else:
            smaller = group.shrunk([0, 1])
            assert on_gpu(smaller) == 2
            smaller.close()
        over.wait(LONG)

    check(jobs.run([backend] * 3, body))


def on_gpu(group: tr.ProcessGroup) -> float:
    """What an all_reduce of ones gives on the GPU."""
    array = fake_cupy.asarray(np.ones(2, np.float32))
    group.all_reduce(array)
    return float(array.get()[0])


def reduce_until_it_fails(group: tr.ProcessGroup) -> None:
    limit = time.monotonic() + LONG
    while time.monotonic() < limit:
        group.all_reduce(fake_cupy.asarray(np.ones(2, np.float32)))
        time.sleep(0.05)


@pytest.mark.parametrize(
    "asked",
    [
        [BOTH, "native"],
        ["native", BOTH],
        [BOTH, "nccl"],
        [BOTH, "cpu:gloo,cuda:nccl"],
        [BOTH, BOTH, "native"],
        ["native", BOTH, BOTH],
    ],
)
def test_ranks_that_ask_for_others_are_told_so(jobs: Jobs, asked: list[str]) -> None:
    began = time.monotonic()
    results = jobs.run(asked, lambda group: None)
    assert time.monotonic() - began < LONG, "some waited for the deadline"
    others = [rank for rank, name in enumerate(asked) if name != asked[0]]
    for rank, result in enumerate(results):
        assert isinstance(result.error, ConfigError if rank in others else CommError)
        assert f"backend {asked[others[0]]} and rank 0 {asked[0]}" in str(result.error)


@pytest.mark.parametrize("asked", [[BOTH, "native"], ["native", BOTH]])
def test_ranks_that_ask_for_other_subgroups_are_told_so(jobs: Jobs, asked: list[str]) -> None:
    def body(group: JobGroup) -> None:
        words = f"rank 1 was given backend {asked[1]} and rank 0 {asked[0]}"
        with pytest.raises(ConfigError if group.rank else CommError, match=words):
            tr.split_group(group, [[0, 1]], backend=asked[group.rank])
        group.barrier()

    check(jobs.run([BOTH, BOTH], body))


def test_who_asked_for_both_hears_who_did_not_come(jobs: Jobs) -> None:
    def body(group: JobGroup) -> None:
        if group.rank:
            with pytest.raises(tr.CommTimeout) as caught:
                group.session.group("", [0, 1], backend_type(BOTH), 0.5)
            assert caught.value.missing == (0,)
        group.barrier()

    check(jobs.run(["native", "native"], body))


@pytest.mark.parametrize("failing", [0, 1])
def test_all_hear_why_one_has_no_nccl(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    def is_available(kind: BackendType) -> bool:
        return fake_cuda.machine().current.number != failing

    monkeypatch.setattr(late, "is_available", is_available)
    results = jobs.run([BOTH, BOTH], lambda group: None)
    assert isinstance(results[failing].error, BackendUnavailable)
    told = str(results[1 - failing].error)
    assert f"rank {failing} gave up joining the group: the nccl backend is not available" in told


def test_who_waits_in_nccl_hears_that_another_has_failed_on_the_host(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = job._make_backend

    def failing(kind: BackendType, store: Any, rank: int, *rest: Any) -> Any:
        made = make(kind, store, rank, *rest)
        if (kind, rank) == (BackendType.NATIVE, 0):
            made.close()
            raise RuntimeError("no room for it")
        return made

    monkeypatch.setattr(job, "_make_backend", failing)
    results = jobs.run([BOTH, BOTH], lambda group: None)
    assert isinstance(results[0].error, RuntimeError)
    assert "rank 0 gave up joining the group: no room for it" in str(results[1].error)


@pytest.mark.skipif(is_available(BackendType.NCCL), reason="there may be a GPU here")
def test_without_cuda_it_says_what_to_do() -> None:
    with pytest.raises(BackendUnavailable, match=r"pip install '\.\[cuda12\]'"):
        tr.init_process_group(BOTH, free_address(), world_size=1, rank=0, timeout=LONG)
    assert not tr.is_initialized()
    with pytest.raises(BackendUnavailable, match="no NVIDIA driver"):
        tr.init_process_group(BOTH, free_address(), world_size=1, rank=0, device_id=0)


def test_a_job_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_NVIDIA_DRIVER", (Path("/"),))
    with fake_gpus(2) as machine:
        tr.init_process_group(BOTH, free_address(), world_size=1, rank=0, device_id=1)
        try:
            assert tr.is_backend_available(BOTH)
            group, native = tr.new_group(), tr.new_group(backend="native")
            for each in (tr.group.WORLD, group, tr.split(0)):
                assert each is not None
                assert tr.get_backend_config(each) == BOTH
                assert sums(each) == (1, 1)
            assert tr.get_backend(native) == "native"
            group.abort()
            for array in (np.ones(1), fake_cupy.asarray(np.ones(1))):
                with pytest.raises(CommAborted, match="aborted"):
                    group.all_reduce(array)
            output = fake_cupy.zeros(2, np.float32)
            tr.all_reduce_into(output, fake_cupy.asarray(np.ones(2, np.float32)))
            assert (output.get() == 1).all()
            for wrong, error in (
                (fake_cupy.asarray(np.ones(1, np.float32)), ValueError),
                (fake_cupy.asarray(np.ones(2)), ValueError),
                (np.ones(2, np.float32), TypeError),
            ):
                with pytest.raises(error):
                    tr.all_reduce_into(output, wrong)
        finally:
            tr.destroy_process_group()
    assert not machine.faults


def test_both_leave_when_the_group_does(jobs: Jobs) -> None:
    def body(group: JobGroup) -> None:
        made = tr.split_group(group, [[0, 1]])
        assert made is not None
        sums(made)
        tr.destroy_process_group(made)
        for array in (np.ones(1), fake_cupy.asarray(np.ones(1))):
            with pytest.raises(CommAborted, match="closed"):
                made.all_reduce(array)
        assert sums(group) == (2, 2)

    check(jobs.run([BOTH, BOTH], body))
