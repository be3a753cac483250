"""Measures how long N agents take to form one round.

    python benchmarks/rendezvous.py --agents 1000

All agents are rendezvous handlers in this process, each with its own lease and its own watches. The
time is measured from their start until the last one has its assignment. With --growth this is done
for 16, 64, 256 and so on agents; torch's c10d, if torch is installed, for as many as --peers says.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks.bars import Check
from torsh_runtime.store.base import Compare, Entry, Event, Listing, Outcome, Store, Write
from torsh_runtime.store.etcd import EtcdConfig, EtcdStore
from torsh_runtime.store.hosted import HostedStore
from torsh_runtime.store.memory import MemoryStore
from torsh_runtime.store.remote import RemoteStore
from torshrun.rendezvous.base import JobOver, RendezvousEvent, RoundFormed
from torshrun.rendezvous.epoch import Epoch
from torshrun.rendezvous.heartbeats import Heartbeat, Heartbeats, Judge, Reply
from torshrun.rendezvous.rejoin import EpochRendezvous, Prepare
from torshrun.rendezvous.settings import NodeFacts, Settings

Open = Callable[[], Store]
SECRET = b"the secret of the benchmark"
"""The key that signs every row is derived from it."""
DEADLINE = 300.0
"""Seconds for one measurement."""


class Counted(Store):
    """Counts the requests to a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.requests = 0

    def _count(self) -> Store:
        self.requests += 1
        return self._store

    async def get(self, key: str) -> Entry | None:
        return await self._count().get(key)

    async def list(self, prefix: str) -> Listing:
        return await self._count().list(prefix)

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return await self._count().put(key, value, lease)

    async def delete(self, key: str) -> bool:
        return await self._count().delete(key)

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        return await self._count().transact(compares, writes)

    async def add(self, key: str, amount: int) -> int:
        return await self._count().add(key, amount)

    async def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        return await self._count().wait(keys, timeout)

    def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        return self._count().watch(prefix, after)

    async def grant(self, ttl: float) -> int:
        return await self._count().grant(ttl)

    async def keep_alive(self, lease: int) -> None:
        await self._count().keep_alive(lease)

    async def revoke(self, lease: int) -> None:
        await self._count().revoke(lease)

    async def close(self) -> None:
        await self._store.close()


class LocalBeats(Heartbeats):
    """Delivers heartbeats between agents of this process."""

    ends: dict[str, Judge | None]

    def __init__(self, ends: dict[str, Judge | None], end: str) -> None:
        self.ends = ends
        self._end = end

    def serve(self, judge: Judge | None) -> None:
        self.ends[self._end] = judge

    async def beat(
        self, node: str, endpoint: str, fence: int, beat: Heartbeat, timeout: float
    ) -> Reply:
        judge = self.ends.get(node)
        return Reply("granted" if judge and judge(beat) else "refused")

    async def close(self) -> None:
        self.ends.pop(self._end, None)


async def form(count: int, open_store: Open, run_id: str) -> tuple[float, int, int]:
    """Return the seconds until all have their place, and the requests of an agent.

    These are the most of an agent and the sum of all agents.
    """
    settings = Settings(run_id=run_id, min_nodes=count, max_nodes=count, ttl=15.0)
    counted = [Counted(open_store()) for _ in range(count)]
    ends: dict[str, Judge | None] = {}
    done, placed = asyncio.get_running_loop().create_future(), 0

    def post(event: RendezvousEvent) -> None:
        nonlocal placed
        placed += isinstance(event, RoundFormed)
        if done.done():
            return
        if isinstance(event, JobOver):
            done.set_exception(RuntimeError(f"an agent ended: {event.verdict.reason}"))
        elif placed == count:
            done.set_result(None)

    agents = [
        EpochRendezvous(_meeting(store), settings, SECRET, _preparing(_facts(i), ends))
        for i, store in enumerate(counted)
    ]
    begun = time.perf_counter()
    for agent in agents:
        agent.start(post)
    async with asyncio.timeout(DEADLINE):
        await done
    seconds = time.perf_counter() - begun
    requests = [store.requests for store in counted]
    await asyncio.gather(*(agent.close() for agent in agents))
    for store in counted:
        await store.close()
    return seconds, max(requests), sum(requests)


def _meeting(store: Store) -> Callable[[], Awaitable[Store]]:
    async def meet() -> Store:
        return store

    return meet


def _preparing(facts: NodeFacts, ends: dict[str, Judge | None]) -> Prepare:
    async def prepare(_store: Store, _epoch: Epoch) -> tuple[NodeFacts, Heartbeats]:
        return facts, LocalBeats(ends, facts.node)

    return prepare


def _facts(number: int) -> NodeFacts:
    return NodeFacts(
        node=f"n{number:05d}",
        host=f"host{number}",
        address=f"10.0.{number // 256}.{number % 256}",
        endpoint=f"tcp:10.0.{number // 256}.{number % 256}:1",
        nproc=8,
    )


class _Shared(Counted):
    """Represents one agent's end of a store that all share."""

    async def close(self) -> None:
        pass


@contextmanager
def stores(backend: str, endpoints: str) -> Iterator[Open]:
    """Yield a function that opens a store for one agent.

    An etcd, or the server for tcp, is started if needed.
    """
    if backend == "memory":
        shared = MemoryStore()
        yield lambda: _Shared(shared)
    elif backend == "tcp":
        with HostedStore.start("tcp:127.0.0.1:0", b"benchmark") as hosted:
            yield lambda: RemoteStore(hosted.endpoint, b"benchmark")
    elif endpoints:
        config = EtcdConfig.parse(endpoints)
        yield lambda: EtcdStore(config)
    else:
        with _own_etcd() as endpoint, stores(backend, endpoint) as opened:
            yield opened


@contextmanager
def _own_etcd() -> Iterator[str]:
    """Start a throw-away etcd 3.5 of one member, with the tests' code."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
    from support.etcd_servers import EtcdCluster, binary

    with (
        tempfile.TemporaryDirectory() as folder,
        EtcdCluster(binary("3.5"), Path(folder)) as etcd,
    ):
        yield etcd.endpoints[0]


class Formed(NamedTuple):
    """Holds the figures of one round that was formed."""

    agents: int
    seconds: float
    average: float
    """Average number of requests of an agent."""
    most: int

    def __str__(self) -> str:
        return (
            f"{self.agents:6} agents {self.seconds:8.2f} s   requests per agent: "
            f"{self.average:.1f}, of the leader {self.most}"
        )

    def checks(self) -> list[Check]:
        """Return the checks, whose bars are for 1,000 agents."""
        name = f"{self.agents} agents"
        return [
            Check(f"{name}, s", self.seconds, 4.0, at_most=True),
            Check(f"{name}: requests of each", self.average, 12.0, at_most=True),
        ]


def measure_ours(count: int, opened: Open) -> Formed:
    gc.collect()
    seconds, most, total = asyncio.run(form(count, opened, f"bench-{time.time_ns()}"))
    return Formed(count, seconds, total / count, most)


def measure_c10d(count: int) -> str:
    """Measure torch's dynamic rendezvous over its TCPStore, with one thread per agent."""
    try:
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
    except ImportError:
        return "torch is not installed: no c10d"
    handlers: list[Any] = []
    for number in range(count):
        parameters = RendezvousParameters(
            backend="c10d",
            endpoint="127.0.0.1:29497",
            run_id=f"bench{count}",
            min_nodes=count,
            max_nodes=count,
            is_host=str(number == 0),
        )
        backend, store = create_backend(parameters)
        handlers.append(create_handler(store, backend, parameters))
    threads = [threading.Thread(target=one.next_rendezvous, daemon=True) for one in handlers]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    seconds = time.perf_counter() - begun
    for handler in handlers:
        with suppress(Exception):  # their clean-up is not measured
            handler.shutdown()
    return f"torch    c10d   {count:6} agents {seconds:8.2f} s"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--backend", choices=("etcd", "tcp", "memory"), default="etcd")
    parser.add_argument("--endpoints", default="", help="of etcd; default: one of its own")
    parser.add_argument("--growth", action="store_true", help="16, 64, 256 and so on as well")
    parser.add_argument("--peers", type=int, default=0, help="c10d up to so many; 128 take 25 s")
    parser.add_argument("--quick", action="store_true", help="few agents: shows that it works")
    parser.add_argument("--bars", action="store_true", help="exit status 1 unless all pass")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    agents = 16 if options.quick else options.agents
    sizes = [n for n in (16, 64, 256) if n < agents] if options.growth else []
    with stores(options.backend, options.endpoints) as opened:
        for count in [*sizes, agents]:
            formed = measure_ours(count, opened)
            print(f"torshrun {options.backend:6} {formed}", flush=True)
    for count in [n for n in (4, 16, 64, 128) if n <= options.peers]:
        print(measure_c10d(count), flush=True)
    checks = formed.checks() if options.bars else []
    print(*checks, sep="\n", end="\n" if checks else "")
    return 0 if all(check.passed for check in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
