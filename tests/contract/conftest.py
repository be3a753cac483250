"""Stores of every kind behind one blocking face, and a check that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.etcd_servers import VERSIONS, EtcdCluster, EtcdServer, binary_or_skip
from support.fake_gpus import Ranks

from torsh_runtime.errors import StoreTimeout
from torsh_runtime.store.base import Compare, Entry, Event, Listing, Outcome, Store, Write
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.etcd import EtcdConfig, EtcdStore
from torsh_runtime.store.memory import MemoryStore
from torsh_runtime.store.remote import RemoteStore
from torsh_runtime.store.server import StoreServer
from torsh_runtime.store.state import KeyValueState

T = TypeVar("T")
GUARD = 60.0
SECRET = b"the job's secret"


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-loop")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(GUARD)

    def close(self) -> None:
        async def cancel_all() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.loop.shutdown_asyncgens()
            await self.loop.shutdown_default_executor()

        self.run(cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(GUARD)
        assert not self._thread.is_alive()
        self.loop.close()


class BlockingWatch:
    """The blocking client's Watch over an asynchronous one."""

    def __init__(self, loop: LoopThread, store: Store, prefix: str, after: int) -> None:
        self._loop = loop
        self._events = store.watch(prefix, after)
        self._next: asyncio.Task[Event] | None = None

    def __iter__(self) -> BlockingWatch:
        return self

    def __next__(self) -> Event:
        return self.next(GUARD)

    def next(self, timeout: float) -> Event:
        return self._loop.run(self._take(timeout))

    async def _take(self, timeout: float) -> Event:
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._events))
        done, _ = await asyncio.wait([self._next], timeout=timeout)
        if not done:
            raise StoreTimeout("no event")
        task, self._next = self._next, None
        return task.result()

    async def _end(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])
        await self._events.aclose()

    def __enter__(self) -> BlockingWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._end())


class BlockingStore:
    """The blocking client's methods over an asynchronous Store."""

    def __init__(self, loop: LoopThread, store: Store) -> None:
        self._loop = loop
        self._store = store

    def get(self, key: str) -> Entry | None:
        return self._loop.run(self._store.get(key))

    def list(self, prefix: str) -> Listing:
        return self._loop.run(self._store.list(prefix))

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return self._loop.run(self._store.put(key, value, lease))

    def delete(self, key: str) -> bool:
        return self._loop.run(self._store.delete(key))

    def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        return self._loop.run(self._store.transact(compares, writes))

    def add(self, key: str, amount: int) -> int:
        return self._loop.run(self._store.add(key, amount))

    def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        return self._loop.run(self._store.wait(keys, timeout))

    def watch(self, prefix: str, after: int) -> BlockingWatch:
        return BlockingWatch(self._loop, self._store, prefix, after)

    def grant(self, ttl: float) -> int:
        return self._loop.run(self._store.grant(ttl))

    def keep_alive(self, lease: int) -> None:
        self._loop.run(self._store.keep_alive(lease))

    def revoke(self, lease: int) -> None:
        self._loop.run(self._store.revoke(lease))

    def close(self) -> None:
        self._loop.run(self._store.close())


class ForgetfulEtcd(BlockingStore):
    """An etcd that remembers only the last four puts."""

    def __init__(self, loop: LoopThread, store: Store, server: EtcdServer) -> None:
        super().__init__(loop, store)
        self._server = server

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        revision = super().put(key, value, lease)
        if revision > 5:
            self._server.post("kv/compaction", {"revision": str(revision - 4)})
        return revision


AnyStore = BlockingStore | StoreClient
OpenStore = Callable[..., AnyStore]


def _sockets() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail when a thread or a socket outlives the test."""
    threads, sockets = set(threading.enumerate()), _sockets()
    yield
    gc.collect()
    limit = time.monotonic() + 10
    while time.monotonic() < limit and (
        set(threading.enumerate()) - threads or _sockets() - sockets
    ):
        time.sleep(0.01)
    assert set(threading.enumerate()) <= threads
    assert _sockets() <= sockets


@pytest.fixture(scope="module")
def fake_ranks() -> Iterator[Ranks]:
    """Ranks that are threads, whose GPUs are fake ones."""
    ranks = Ranks()
    yield ranks
    ranks.close()


@pytest.fixture
def loop_thread(no_leaks: None) -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(
    params=[
        *("memory", "unix", "tcp", "remote"),
        *(pytest.param(f"etcd-{version}", marks=pytest.mark.etcd) for version in VERSIONS),
    ]
)
def open_store(
    request: pytest.FixtureRequest, loop_thread: LoopThread, tmp_path: Path
) -> Iterator[OpenStore]:
    """Opens stores of one kind: over a given state, closed after the test."""
    with ExitStack() as stack:

        def open_etcd(version: str, *, forgetful: bool) -> AnyStore:
            cluster = stack.enter_context(EtcdCluster(binary_or_skip(version), tmp_path))
            etcd = EtcdStore(EtcdConfig(endpoints=cluster.endpoints, request_timeout=GUARD))
            stack.callback(lambda: loop_thread.run(etcd.close()))
            if forgetful:
                return ForgetfulEtcd(loop_thread, etcd, cluster.members[0])
            return BlockingStore(loop_thread, etcd)

        def open_one(state: KeyValueState | None = None) -> AnyStore:
            if request.param.startswith("etcd"):
                version = request.param.removeprefix("etcd-")
                return open_etcd(version, forgetful=state is not None)
            backing = MemoryStore(state=state)
            stack.callback(lambda: loop_thread.run(backing.close()))
            if request.param == "memory":
                return BlockingStore(loop_thread, backing)
            server = StoreServer(backing, SECRET)
            name = f"unix:@torsh-test-{uuid.uuid4().hex}"
            listen = name if request.param == "unix" else "tcp:127.0.0.1:0"
            endpoint = loop_thread.run(server.start(listen))
            stack.callback(lambda: loop_thread.run(server.close()))
            if request.param == "remote":
                remote = RemoteStore(endpoint, SECRET, GUARD)
                stack.callback(lambda: loop_thread.run(remote.close()))
                return BlockingStore(loop_thread, remote)
            return stack.enter_context(StoreClient.connect(endpoint, SECRET, GUARD, GUARD))

        yield open_one


@pytest.fixture
def store(open_store: OpenStore) -> AnyStore:
    return open_store()
