"""A group over NCCL whose ranks are threads, each with a fake GPU."""

from __future__ import annotations

import gc
import os
import secrets
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from support import fake_cuda, fake_cupy, fake_driver, fake_nccl, nccl_groups
from support.fake_cuda import Machine
from support.forked import Raised
from support.suite.cases import LONG
from support.worlds import PATIENCE, silent

from torsh_runtime.backends import registry
from torsh_runtime.backends.base import Backend, BackendType, ByDevice
from torsh_runtime.backends.by_device import ByDeviceBackend
from torsh_runtime.backends.native.backend import NativeBackend
from torsh_runtime.backends.nccl import unreported
from torsh_runtime.backends.nccl.backend import NcclBackend
from torsh_runtime.backends.nccl.late import LateNcclBackend
from torsh_runtime.comm.choosing import backend_type
from torsh_runtime.contract import WorkerEnv
from torsh_runtime.job import Job
from torsh_runtime.job_group import JobGroup
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore


@contextmanager
def fake_gpus(count: int) -> Iterator[Machine]:
    """While it is open, a driver, nccl4py, cuda-core and cupy are there, on a machine of so many
    GPUs. torch is hidden, as it may have real ones. Failures of GPUs are raised: the ranks are one
    process.
    """
    machine = fake_cuda.plug_in(count)
    modules: dict[str, Any] = {
        "cuda": ModuleType("cuda"),
        "cuda.core": fake_cuda,
        "cuda.bindings": ModuleType("cuda.bindings"),
        "cuda.bindings.driver": fake_driver,
        "nccl": ModuleType("nccl"),
        "nccl.core": fake_nccl,
        "cupy": fake_cupy,
        "torch": None,
    }
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    driver, registry._NVIDIA_DRIVER = registry._NVIDIA_DRIVER, (Path("/"),)
    how = os.environ.setdefault(unreported.VARIABLE, "raise")
    try:
        yield machine
    finally:
        registry._NVIDIA_DRIVER = driver
        if how == "raise":
            os.environ.pop(unreported.VARIABLE, None)
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def by_device(store: StoreClient, rank: int, count: int, timeout: float) -> ByDeviceBackend:
    """A rank's end of a group of native and nccl."""
    host = NativeBackend.connect(store.scoped("cpu/"), rank, count, timeout)
    gpu = LateNcclBackend.connect(store.scoped("cuda/"), rank, count, timeout)
    return ByDeviceBackend(ByDevice(BackendType.NATIVE, BackendType.NCCL), host, gpu)


Connect = Callable[[StoreClient, int, int, float], Backend]


class Ranks:
    """Makes groups of threads that meet in one store."""

    def __init__(self) -> None:
        self._hosted = HostedStore.start(f"unix:@torsh-test-{secrets.token_hex(8)}", b"")
        self._groups = 0
        self._clients: list[StoreClient] = []

    def run(
        self, count: int, body: Callable[[Any], Any], connect: Connect = nccl_groups.connect
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
        return nccl_groups.connect(store, rank, len(members), timeout)

    def silent_store(self) -> AbstractContextManager[None]:
        """In it the ranks' store answers nothing."""
        return silent(self._hosted)

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
