"""NCCL: the suite over several ranks with fake GPUs, a group of one where there is a real one."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import fake_cupy, nccl_groups
from support.fake_gpus import Connect, Ranks, by_device
from support.nccl_cases import REFUSED, cases_for_nccl, reductions_of_nccl
from support.on_device import OnDevice
from support.suite import CASES, reducing

from torsh_runtime.backends.base import BackendType, PremulSum, ReduceOp
from torsh_runtime.backends.nccl.backend import NcclBackend
from torsh_runtime.backends.registry import is_available
from torsh_runtime.errors import BackendUnavailable, CommAborted
from torsh_runtime.monitoring.monitor import recent_operations
from torsh_runtime.status import number_of
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore

LONG = 60.0
WITHOUT = "needs an NVIDIA GPU, its driver and nccl4py"
needs_gpu = pytest.mark.skipif(not is_available(BackendType.NCCL), reason=WITHOUT)


@pytest.fixture
def store() -> Iterator[StoreClient]:
    hosted = HostedStore.start(f"unix:@torsh-test-{secrets.token_hex(8)}", b"")
    with StoreClient.connect(hosted.endpoint, b"", 30) as client:
        yield client
    hosted.close()


@pytest.fixture
def backend(store: StoreClient) -> Iterator[NcclBackend]:
    backend = nccl_groups.connect(store, 0, 1, LONG)
    yield backend
    backend.close()


@pytest.fixture(params=["torch", "cupy"])
def arrays(request: pytest.FixtureRequest) -> Any:
    """torch or cupy, where it can use the GPU."""
    library = pytest.importorskip(request.param)
    if request.param == "torch" and not library.cuda.is_available():
        pytest.skip("this torch cannot use the GPU")
    return library


def ones(library: Any, *shape: int, dtype: str = "float32") -> Any:
    place = {"device": "cuda"} if library.__name__ == "torch" else {}
    return library.ones(shape, dtype=getattr(library, dtype), **place)


@pytest.mark.skipif(is_available(BackendType.NCCL), reason="there may be a GPU here")
def test_without_cuda_it_is_unavailable(store: StoreClient) -> None:
    with pytest.raises(BackendUnavailable, match=r"pip install '\.\[cuda12\]'"):
        nccl_groups.connect(store, 0, 1, 5)


KINDS = (("fake", nccl_groups.connect, (2, 3)), ("by-device", by_device, (2,)))


def _pairs() -> list[Any]:
    return [
        pytest.param(connect, world, name, id=f"{kind}-{world}-{name}")
        for kind, connect, worlds in KINDS
        for world in worlds
        for name in cases_for_nccl(world)
    ]


@pytest.mark.parametrize(("connect", "world", "name"), _pairs())
def test_the_suite(
    fake_ranks: Ranks, connect: Connect, world: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reducing, "reductions", reductions_of_nccl)
    fake_ranks.run(world, lambda backend: CASES[name].body(OnDevice(backend)), connect)


@pytest.mark.parametrize("name", REFUSED)
def test_what_nccl_has_not_is_refused_before_it_starts(fake_ranks: Ranks, name: str) -> None:
    def body(backend: NcclBackend) -> None:
        with pytest.raises(ValueError, match=r"no tags|from anyone|cannot (send|receive) objects"):
            CASES[name].body(OnDevice(backend))
        backend.barrier(LONG)

    fake_ranks.run(2, body)


@pytest.mark.parametrize("dtype", ["datetime64[s]", "int4"])
def test_dtypes_that_nccl_has_no_name_for_are_refused(fake_ranks: Ranks, dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = getattr(ml_dtypes, dtype, dtype)

    def body(backend: NcclBackend) -> None:
        with pytest.raises(TypeError, match=rf"{re.escape(dtype)} is not supported .* float8"):
            backend.broadcast(fake_cupy.asarray(np.zeros(4, kind)), 0, LONG)
        with pytest.raises(TypeError, match=r"numpy\.ndarray; use backend 'native'"):
            backend.broadcast(np.zeros(4), 0, LONG)
        backend.barrier(LONG)

    fake_ranks.run(2, body)


def test_an_operation_that_nobody_joins_ends_with_the_group(fake_ranks: Ranks) -> None:
    def body(backend: NcclBackend) -> None:
        backend.barrier(LONG)
        if backend.rank:
            work = backend.all_reduce(fake_cupy.zeros(4), ReduceOp.SUM, LONG, async_op=True)
            with pytest.raises(CommAborted, match="rank 0 aborted"):
                work.wait(LONG)
            assert isinstance(work.exception(), CommAborted)
        else:
            backend.abort()

    fake_ranks.run(2, body)


def test_operations_are_recorded(fake_ranks: Ranks) -> None:
    def body(backend: NcclBackend) -> list[tuple[object, ...]]:
        name = f"recorded by {backend.rank}"
        backend.note_as(name)
        array = fake_cupy.zeros(4, np.float32)
        backend.all_reduce(array, ReduceOp.MAX, LONG)
        with pytest.raises(ValueError, match="root"):
            backend.broadcast(array, 7, LONG)
        if backend.rank:
            backend.recv(array, 0, 0, LONG)
        else:
            backend.send(array, 1, 0, LONG)
        backend.barrier(LONG, async_op=True).wait()
        backend.close()
        own = [each for each in recent_operations() if each.group == number_of(name)]
        noted = [each for each in own if each.operation != "wait"]
        assert {(each.path, each.state, each.came) for each in noted} == {("nccl", "done", None)}
        return [
            (each.operation, each.nbytes, each.root, each.sequence, each.in_background)
            for each in noted
        ]

    for rank, found in enumerate(fake_ranks.run(2, body)):
        assert found == [
            ("all_reduce", 16, -1, 1, False),
            ("recv" if rank else "send", 16, 1 - rank, 1, False),
            ("barrier", 0, -1, 2, True),
        ]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", ["bool", "int16", "int64", "float16", "float32", "complex64"])
def test_every_operation_in_a_group_of_one(backend: NcclBackend, arrays: Any, dtype: str) -> None:
    source = ones(arrays, 40, 6, dtype=dtype)[:, ::2]
    outputs = [source.copy() if hasattr(source, "copy") else source.clone() for _ in range(6)]
    for output in outputs:
        output[...] = 0
    backend.all_reduce(source, ReduceOp.SUM, LONG)
    backend.reduce(source, 0, ReduceOp.SUM, LONG)
    backend.broadcast(source, 0, LONG)
    backend.all_gather(outputs[0], source, LONG)
    backend.all_gather([outputs[1]], source, LONG)
    backend.gather([outputs[2]], source, 0, LONG)
    backend.scatter(outputs[3], [source], 0, LONG)
    backend.reduce_scatter(outputs[4], source, ReduceOp.SUM, LONG)
    backend.all_to_all(outputs[5], source, LONG)
    backend.barrier(LONG)
    for output in outputs:
        assert bool((output == source).all())


@pytest.mark.gpu
@needs_gpu
def test_scaled_sums(backend: NcclBackend, arrays: Any) -> None:
    array = ones(arrays, 1000)
    backend.all_reduce(array, PremulSum(2.5), LONG)
    backend.all_reduce(array, ReduceOp.AVG, LONG)
    assert bool((array == 2.5).all())


@pytest.mark.gpu
@needs_gpu
def test_what_nccl_cannot_do_is_refused(backend: NcclBackend, arrays: Any) -> None:
    with pytest.raises(TypeError, match="BOR"):
        backend.all_reduce(ones(arrays, 3, dtype="int32"), ReduceOp.BOR, LONG)
    with pytest.raises(TypeError, match="list"):
        backend.all_reduce([1.0], ReduceOp.SUM, LONG)
    with pytest.raises(ValueError, match="from anyone"):
        backend.recv(ones(arrays, 3), None, 0, LONG)
    backend.barrier(LONG)


@pytest.mark.gpu
@needs_gpu
def test_operations_follow_the_work_on_the_current_stream(
    backend: NcclBackend, arrays: Any
) -> None:
    array, output = ones(arrays, 4000, 4000), ones(arrays, 4000, 4000) * 0
    for _ in range(20):
        array = array @ array / 4000  # keeps the stream busy when the operation is begun
    work = backend.all_gather(output, array, LONG, async_op=True)
    work.wait()
    assert bool((output == 1).all())
    assert work.wait(LONG)
    assert work.done()


@pytest.mark.gpu
@needs_gpu
def test_operations_that_go_together(backend: NcclBackend, arrays: Any) -> None:
    first, second = ones(arrays, 100, 2)[:, 0], ones(arrays, 50)
    with backend.coalescing():
        works = [
            backend.all_reduce(first, PremulSum(2.0), LONG, async_op=True),
            backend.all_reduce(second, PremulSum(3.0), LONG, async_op=True),
        ]
        with pytest.raises(RuntimeError, match="block"):
            works[0].wait()
    for work in works:
        work.wait()
    assert bool((first == 2).all())
    assert bool((second == 3).all())


@pytest.mark.gpu
@needs_gpu
def test_callbacks_come_without_anyone_waiting(backend: NcclBackend, arrays: Any) -> None:
    seen: list[Any] = []
    work = backend.all_reduce(ones(arrays, 10), ReduceOp.SUM, LONG, async_op=True)
    work.add_done_callback(seen.append)
    limit = time.monotonic() + LONG
    while not seen and time.monotonic() < limit:
        time.sleep(0.01)
    assert seen == [work]


@pytest.mark.gpu
@needs_gpu
def test_an_aborted_group_says_so(backend: NcclBackend, arrays: Any) -> None:
    backend.abort()
    with pytest.raises(CommAborted, match="rank 0 aborted"):
        backend.all_reduce(ones(arrays, 3), ReduceOp.SUM, LONG)


@pytest.fixture
def torch() -> Any:
    """torch, where it can use the GPU."""
    library = pytest.importorskip("torch")
    if not library.cuda.is_available():
        pytest.skip("this torch cannot use the GPU")
    return library


@pytest.mark.gpu
@needs_gpu
def test_nothing_is_held_behind_a_long_kernel(backend: NcclBackend, torch: Any) -> None:
    backend.barrier(LONG)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda._sleep(1_000_000_000)
    for _ in range(200):
        array = torch.empty(1 << 18, device="cuda")
        work = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
        work.wait()
        del array, work
    assert torch.cuda.max_memory_allocated() - before < 8 << 20
    torch.cuda.synchronize()


@pytest.mark.gpu
@needs_gpu
def test_calls_that_block_run_on_the_callers_stream(backend: NcclBackend, torch: Any) -> None:
    own = torch.cuda.ExternalStream(backend._own.handle)
    backend.barrier(LONG)
    own.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        array = torch.ones(1 << 20, device="cuda")
        torch.cuda._sleep(1_000_000_000)
        for _ in range(10):
            backend.all_reduce(array, PremulSum(2.0), LONG)
        assert not torch.cuda.current_stream().query()
        assert own.query(), "the group's stream has got some of it"
        work = backend.all_reduce(array, PremulSum(0.5), LONG, async_op=True)
        work.wait()
        assert bool((array == 512).all())
    assert not backend.failed


@pytest.mark.gpu
@needs_gpu
def test_a_suspended_group_goes_on(backend: NcclBackend, arrays: Any) -> None:
    for factor in (2.0, 4.0):
        array = ones(arrays, 1000)
        backend.all_reduce(array, PremulSum(factor), LONG)
        backend.suspend(LONG)
        assert bool((array == factor).all())
    backend.resume(LONG)
    backend.barrier(LONG)


@pytest.mark.gpu
@needs_gpu
def test_memory_of_a_pool_is_registered_once(backend: NcclBackend, torch: Any) -> None:
    from torsh_runtime.framework.torch import FRAMEWORK
    from torsh_runtime.parallel.fsdp.registered_slots import RegisteredSlots

    class Group:
        register_memory = backend.register_memory

    group: Any = Group()
    values = torch.ones(1 << 22, device="cuda")
    pool = FRAMEWORK.memory_pool(values)
    assert pool is not None
    slots = RegisteredSlots(pool, group)
    for _ in range(5):
        FRAMEWORK.release(values)
        slots.allocate(values)
        values.fill_(1.0)
        backend.all_reduce(values, PremulSum(3.0), LONG)
    assert bool((values == 3).all())
    assert len(backend._registered) == 1
    del pool, slots
    FRAMEWORK.release(values)
    backend.barrier(LONG)
    backend.suspend(LONG)
    assert not backend._given_up


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_captured_operations_run_with_the_graph(
    backend: NcclBackend, torch: Any, mode: str
) -> None:
    array = torch.zeros(1000, device="cuda")
    backend.all_reduce(array, ReduceOp.SUM, LONG)
    pending = backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True)
    pending.wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        array += 1
        backend.all_reduce(array, ReduceOp.SUM, LONG)
        backend.all_reduce(array, ReduceOp.SUM, LONG, async_op=True).wait()
        time.sleep(0.2)  # while the thread that watches looks around
    for _ in range(10):
        graph.replay()
    assert bool((array == 10).all())
    backend.barrier(LONG)
    assert not backend.failed
