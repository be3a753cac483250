"""A group over NCCL whose ranks are threads, each with a fake GPU; and the suite's cases on it."""

from __future__ import annotations

import ctypes
import gc
import secrets
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import timedelta
from types import ModuleType
from typing import Any

import numpy as np
from support import fake_cuda, fake_cupy, fake_nccl
from support.fake_cuda import Machine
from support.forked import Raised
from support.suite.cases import LONG
from support.worlds import PATIENCE

from torsh_runtime.backends.base import Backend, BackendType, ByDevice, Reduce
from torsh_runtime.backends.by_device import ByDeviceBackend
from torsh_runtime.backends.native.backend import NativeBackend
from torsh_runtime.backends.nccl.backend import NcclBackend
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.choosing import backend_type
from torsh_runtime.contract import WorkerEnv
from torsh_runtime.job import Job
from torsh_runtime.job_group import JobGroup
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore


@contextmanager
def fake_gpus(count: int) -> Iterator[Machine]:
    """While it is open, nccl4py, cuda-core and cupy are there, on a machine of so many GPUs. torch
    is hidden, as it may have real ones.
    """
    machine = fake_cuda.plug_in(count)
    modules: dict[str, Any] = {
        "cuda": ModuleType("cuda"),
        "cuda.core": fake_cuda,
        "nccl": ModuleType("nccl"),
        "nccl.core": fake_nccl,
        "cupy": fake_cupy,
        "torch": None,
    }
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield machine
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def by_device(store: StoreClient, rank: int, count: int, timeout: float) -> ByDeviceBackend:
    """A rank's end of a group of native and nccl."""
    host = NativeBackend.connect(store.scoped("cpu/"), rank, count, timeout)
    gpu = NcclBackend.connect(store.scoped("cuda/"), rank, count, timeout)
    return ByDeviceBackend(ByDevice(BackendType.NATIVE, BackendType.NCCL), host, gpu)


Connect = Callable[[StoreClient, int, int, float], Backend]


class Ranks:
    """Makes groups of threads that meet in one store."""

    def __init__(self) -> None:
        self._hosted = HostedStore.start(f"unix:@torsh-test-{secrets.token_hex(8)}", b"")
        self._groups = 0
        self._clients: list[StoreClient] = []

    def run(
        self, count: int, body: Callable[[Any], Any], connect: Connect = NcclBackend.connect
    ) -> list[Any]:
        """What body(backend) returned on each rank; its first error is raised here, and so is
        what would have been undefined on a GPU.
        """
        with fake_gpus(count) as machine:
            results = self._run(machine, count, body, connect)
        while self._clients:
            self._clients.pop().close()
        for result in results:
            if isinstance(result, Raised):
                raise result.error
        assert not machine.faults, machine.faults
        return results

    def connect(
        self, kind: BackendType, name: str, rank: int, members: Sequence[int], timeout: float
    ) -> NcclBackend:
        """One more group of ranks of a run, as a Session makes them."""
        client = StoreClient.connect(self._hosted.endpoint, b"", PATIENCE)
        self._clients.append(client)
        store = client.scoped(f"group/{self._groups}/{name}/")
        return NcclBackend.connect(store, rank, len(members), timeout)

    def close(self) -> None:
        self._hosted.close()

    def _run(
        self, machine: Machine, count: int, body: Callable[[Any], Any], connect: Connect
    ) -> list[Any]:
        self._groups += 1
        prefix = f"group/{self._groups}/"
        results: list[Any] = [None] * count

        def run(rank: int) -> None:
            machine.current = machine.gpus[rank]
            try:
                with StoreClient.connect(self._hosted.endpoint, b"", PATIENCE) as client:
                    backend = connect(client.scoped(prefix), rank, count, PATIENCE)
                    with closing(backend):
                        results[rank] = body(backend)
            except BaseException as error:
                traceback.clear_frames(error.__traceback__)  # they hold on to the group
                results[rank] = Raised(error)

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a rank hangs"
        gc.collect(1)  # errors that a body caught make cycles, and groups in them hold descriptors
        return results


class Jobs:
    """Makes default groups of threads with a fake GPU each."""

    def __init__(self) -> None:
        self._hosted = HostedStore.start(f"unix:@torsh-test-{secrets.token_hex(8)}", b"")

    def run(
        self, asked: Sequence[str], body: Callable[[JobGroup], Any], timeout: float = LONG
    ) -> list[Any]:
        """What body(group) returned on each rank, of the backend that this one asked for, or
        Raised(error)."""
        results: list[Any] = [None] * len(asked)

        def run(rank: int) -> None:
            machine.current = machine.gpus[rank]
            try:
                results[rank] = self._in_group(rank, asked, body, timeout)
            except BaseException as error:
                traceback.clear_frames(error.__traceback__)  # they hold on to the group
                results[rank] = Raised(error)

        with fake_gpus(len(asked)) as machine:
            threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(asked))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
                assert not thread.is_alive(), "a rank hangs"
        gc.collect(1)
        assert not machine.faults, machine.faults
        return results

    def close(self) -> None:
        self._hosted.close()

    def _in_group(
        self, rank: int, asked: Sequence[str], body: Callable[[JobGroup], Any], timeout: float
    ) -> Any:
        ranks = range(len(asked))
        place = {"RANK": str(rank), "WORLD_SIZE": str(len(ranks))}
        env = WorkerEnv.from_environ({**place, "TORSH_STORE_ENDPOINT": self._hosted.endpoint})
        job = Job.connect(env, timeout)
        try:
            made = job.make_backend(backend_type(asked[rank]), job.name, rank, ranks, timeout)
        except BaseException:
            job.close(wait_for_peers=False)
            raise
        with closing(JobGroup(made, timeout, job)) as group:
            return body(group)


class Staged:
    """Copies of numpy arrays on the current device, laid out as they are; those that share memory
    share it there."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._cupy: Any = sys.modules["cupy"]
        self._pieces: list[tuple[int, int, Any]] = []
        for low, high in _merged([np.lib.array_utils.byte_bounds(array) for array in arrays]):
            self._pieces.append((low, high, self._cupy.asarray(_host_bytes(low, high))))

    def array(self, host: Any) -> Any:
        address = host.__array_interface__["data"][0]
        for low, high, piece in self._pieces:
            if low <= address < high:
                facts = (address - low, host.strides)
                view = np.ndarray(host.shape, host.dtype, piece.contents, *facts)
                return self._cupy.ndarray(piece.block, view)
        return self._cupy.empty(host.shape, host.dtype)

    def fetch(self, outputs: Sequence[Any]) -> None:
        """Copy the memory of these arrays back, in turn with the current stream."""
        for low, high, piece in self._pieces:
            begins = [output.__array_interface__["data"][0] for output in outputs]
            if any(low <= begin < high for begin in begins):
                _host_bytes(low, high)[:] = piece.get()


class StagedWork(Work):
    """Work whose results are fetched when it is waited for."""

    def __init__(self, inner: Work, staged: Staged, outputs: Sequence[Any]) -> None:
        self._inner = inner
        self._staged = staged
        self._to_fetch = list(outputs)

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        self._inner.wait(timeout)
        self._fetch()  # after what the stream waits for
        return self._inner.wait(LONG)

    def done(self) -> bool:
        over = self._inner.done()
        if over and self._inner.exception() is None:
            self._fetch()
        return over

    def exception(self) -> BaseException | None:
        return self._inner.exception()

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        self._inner.add_done_callback(lambda _: callback(self))

    @property
    def source(self) -> int | None:
        return self._inner.source

    def _fetch(self) -> None:
        outputs, self._to_fetch = self._to_fetch, []
        self._staged.fetch(outputs)


class OnDevice(Backend):
    """A backend that takes numpy arrays to the current device and back."""

    type = BackendType.NCCL

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner.rank, inner.world_size)
        self._inner = inner

    failed = property(lambda self: self._inner.failed)

    def all_reduce(self, array: Any, op: Reduce, timeout: float, async_op: bool = False) -> Work:
        return self._call("all_reduce", [array], (array, op, timeout, async_op))

    def reduce(
        self, array: Any, root: int, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        return self._call("reduce", [array], (array, root, op, timeout, async_op))

    def broadcast(self, array: Any, root: int, timeout: float, async_op: bool = False) -> Work:
        outputs = [] if root == self.rank else [array]
        return self._call("broadcast", outputs, (array, root, timeout, async_op))

    def all_gather(self, outputs: Any, array: Any, timeout: float, async_op: bool = False) -> Work:
        return self._call("all_gather", _arrays(outputs), (outputs, array, timeout, async_op))

    def gather(
        self, outputs: Any, array: Any, root: int, timeout: float, async_op: bool = False
    ) -> Work:
        return self._call("gather", _arrays(outputs), (outputs, array, root, timeout, async_op))

    def scatter(
        self, array: Any, inputs: Any, root: int, timeout: float, async_op: bool = False
    ) -> Work:
        return self._call("scatter", [array], (array, inputs, root, timeout, async_op))

    def reduce_scatter(
        self, output: Any, inputs: Any, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        return self._call("reduce_scatter", [output], (output, inputs, op, timeout, async_op))

    def all_to_all(self, outputs: Any, inputs: Any, timeout: float, async_op: bool = False) -> Work:
        return self._call("all_to_all", _arrays(outputs), (outputs, inputs, timeout, async_op))

    def send(self, array: Any, dst: int, tag: int, timeout: float, async_op: bool = False) -> Work:
        return self._call("send", [], (array, dst, tag, timeout, async_op))

    def recv(
        self, array: Any, src: int | None, tag: int | None, timeout: float, async_op: bool = False
    ) -> Work:
        return self._call("recv", [array], (array, src, tag, timeout, async_op))

    def barrier(self, timeout: float, async_op: bool = False) -> Work:
        return self._inner.barrier(timeout, async_op)

    def coalescing(self) -> AbstractContextManager[object]:
        return self._inner.coalescing()

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None:
        self._inner.close()

    def _call(self, name: str, outputs: Sequence[Any], arguments: tuple[Any, ...]) -> Work:
        staged = Staged([array for given in arguments for array in _arrays(given)])
        on_device = [_replaced(given, staged) for given in arguments]
        work = StagedWork(getattr(self._inner, name)(*on_device), staged, outputs)
        if not arguments[-1]:
            work.wait()
        return work


def _arrays(given: Any) -> list[Any]:
    if isinstance(given, np.ndarray) and given.dtype.isnative and given.dtype.kind not in "mM":
        return [given]
    if isinstance(given, list | tuple):
        return [array for each in given for array in _arrays(each)]
    return []


def _replaced(given: Any, staged: Staged) -> Any:
    if _arrays(given) and isinstance(given, list | tuple):
        return type(given)(_replaced(each, staged) for each in given)
    return staged.array(given) if _arrays(given) else given


def _merged(bounds: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for low, high in sorted(bounds):
        if found and low < found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        elif high > low:
            found.append((low, high))
    return found


def _host_bytes(low: int, high: int) -> Any:
    return np.frombuffer((ctypes.c_ubyte * (high - low)).from_address(low), np.uint8)
