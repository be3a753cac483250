"""Joins processes that another framework has placed into the ranks of one job.

The framework finds each process's place (`Place.here`). One process serves the job's store
(`serve`), which determines the ranks' environments, and each process enters with its own.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import msgpack

from torsh_runtime.bootstrap import destroy_process_group, init_process_group
from torsh_runtime.comm.default import default_group, has_default_group
from torsh_runtime.contract import ALL_VARIABLES, WorkerEnv
from torsh_runtime.errors import CommTimeout, StoreError, StoreTimeout, WorkerFailed
from torsh_runtime.job import store_client
from torsh_runtime.store.base import Compare, Put
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore
from torsh_runtime.store.keys import KEY_BYTES

_CONNECT = 10.0
"""Seconds within which the job's store must answer."""
_DECISION = "begun"
"""The key for the ranks that have not started, written by the first rank that knows them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Describes the place of a process."""

    host: str
    """The address at which other processes reach it."""
    node: str
    """The name of its machine, or of what the framework treats as one."""
    pid: int
    free_port: int
    """A TCP port that was free on that host."""

    @classmethod
    def here(cls, host: str, node: str) -> Place:
        """Return the place of this process, on the given host and node."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((host, 0))
            return cls(host, node, os.getpid(), probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Tells the ranks of a job how to reach its store."""

    endpoint: str
    """The endpoint of the job's store."""
    secret: str
    """Hexadecimal key that proves that a process belongs to the job."""

    def environments(
        self, places: Sequence[Place], run_id: str = "none", restart_count: int = 0
    ) -> list[WorkerEnv]:
        """Return the environment of each rank. Ranks are numbered in the order of `places`."""
        job = WorkerEnv(
            rank=0,
            world_size=len(places),
            local_rank=0,
            local_world_size=1,
            master_addr=places[0].host,
            master_port=places[0].free_port,
            run_id=run_id,
            restart_count=restart_count,
            store_endpoint=self.endpoint,
            secret=self.secret,
        )
        return [_placed(job, places, rank) for rank in range(len(places))]


def serve(host: str) -> tuple[Rendezvous, HostedStore]:
    """Serve the store of a new job at a free port of `host`, until it is closed.

    Raises StoreError if this process cannot serve it.
    """
    secret = secrets.token_bytes(KEY_BYTES)
    address = f"[{host}]" if ":" in host else host
    hosted = HostedStore.start(f"tcp:{address}:0", secret)
    return Rendezvous(hosted.endpoint, secret.hex()), hosted


def _placed(job: WorkerEnv, places: Sequence[Place], rank: int) -> WorkerEnv:
    nodes = list(dict.fromkeys(place.node for place in places))
    beside = [other for other, place in enumerate(places) if place.node == places[rank].node]
    return replace(
        job,
        rank=rank,
        local_rank=beside.index(rank),
        local_world_size=len(beside),
        node_rank=nodes.index(places[rank].node),
        num_nodes=len(nodes),
        role_rank=rank,
    )


def enter(env: WorkerEnv, backend: str | None, timeout: float) -> None:
    """Make this process a rank: set its environment like a worker's, and create its default group.

    An existing default group is left first. Raises the errors of init_process_group().
    """
    leave()
    _set(env.to_environ())
    init_process_group(backend, timeout=timeout)


def leave() -> None:
    """Leave the default group, if there is one. The environment is kept."""
    if has_default_group():
        destroy_process_group()


def abort() -> None:
    """Abort this rank's default group, and so all ranks of its job."""
    if has_default_group():
        default_group().abort()


@contextmanager
def entered(
    env: WorkerEnv, backend: str | None, timeout: float, start_timeout: float
) -> Iterator[None]:
    """Enter once all ranks have started, and leave and restore the environment afterwards.

    Raises StartTimeout naming the ranks that have not started within `start_timeout` seconds.
    """
    await_ranks(env, start_timeout)
    before = {name: os.environ[name] for name in ALL_VARIABLES if name in os.environ}
    try:
        enter(env, backend, timeout)
        yield
    finally:
        leave()
        _set(before)


class RankRepeated(WorkerFailed):
    """Says that the framework restarted a rank by itself, which cannot continue alone."""


class StartTimeout(CommTimeout):
    """Says that some ranks have not started in time, so that none continues."""


def await_ranks(env: WorkerEnv, timeout: float) -> None:
    """Wait until every rank of the job has called this. It succeeds on all ranks, or on none.

    Raises StartTimeout naming the ranks that have not called it within `timeout` seconds;
    RankRepeated if this rank has called it before, or the job's store is gone.
    """
    keys = {rank: f"begun/{rank}" for rank in range(env.world_size)}
    with _connected(env) as store:
        if store.add(keys[env.rank], 1) > 1:
            raise RankRepeated(f"rank {env.rank} was begun again without the other ranks")
        with suppress(StoreTimeout):
            store.wait(list(keys.values()), timeout)
        missing = [rank for rank, key in keys.items() if store.get(key) is None]
        own = msgpack.packb(missing)
        store.transact([Compare(_DECISION, 0)], [Put(_DECISION, own)])
        decided = store.get(_DECISION)
    missing = msgpack.unpackb(own if decided is None else decided.value)
    if missing:
        raise StartTimeout("the start of all ranks", 0, timeout, missing)


def _connected(env: WorkerEnv) -> StoreClient:
    try:
        return store_client(env.store_endpoint, bytes.fromhex(env.secret), _CONNECT)
    except StoreError as error:  # the store was up before any rank started
        raise RankRepeated(f"rank {env.rank} was begun when its job was over: {error}") from None


def _set(variables: Mapping[str, str]) -> None:
    """Replace all variables that describe a worker's place."""
    for name in ALL_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(variables)
