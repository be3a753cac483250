"""Ranks in processes that another framework has placed: how they become one job.

The framework tells where each process is (`Place.here`). One process serves the job's store
(`serve`), from which follow the ranks' environments, and each process enters with its own.
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
"""Seconds until the job's store must have answered."""
_DECISION = "begun"
"""The key at which the first rank that knows puts which ranks have not begun."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process is."""

    host: str
    """The address by which the other processes reach it."""
    node: str
    """Names its machine, or what its framework takes for one."""
    pid: int
    free_port: int
    """A TCP port that was free there."""

    @classmethod
    def here(cls, host: str, node: str) -> Place:
        """This process's."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((host, 0))
            return cls(host, node, os.getpid(), probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of one job meet."""

    endpoint: str
    """That of the job's store."""
    secret: str
    """In hexadecimal: what proves that a process belongs to the job."""

    def environments(
        self, places: Sequence[Place], run_id: str = "none", restart_count: int = 0
    ) -> list[WorkerEnv]:
        """The environment of each rank; ranks are numbered in the order of `places`."""
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
    """Serve the store of a new job at a free port of `host`, until it is closed. StoreError if this
    process cannot.
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
    """Make this process a rank: set its environment, as torshrun sets a worker's, and make the
    default group; one that is there already is left. Raises what init_process_group() raises.
    """
    leave()
    _set(env.to_environ())
    init_process_group(backend, timeout=timeout)


def leave() -> None:
    """Leave the default group, if there is one. The environment stays."""
    if has_default_group():
        destroy_process_group()


def abort() -> None:
    """End what this process's rank has under way, and with it all ranks of its job."""
    if has_default_group():
        default_group().abort()


@contextmanager
def entered(
    env: WorkerEnv, backend: str | None, timeout: float, start_timeout: float
) -> Iterator[None]:
    """As enter(), once all ranks have begun, and leave() at the end, with the environment as it
    was. StartTimeout names the ranks that have not begun within `start_timeout` seconds.
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
    """The framework has begun a rank again by itself, which cannot go on alone."""


class StartTimeout(CommTimeout):
    """Ranks have not begun in time; none goes on."""


def await_ranks(env: WorkerEnv, timeout: float) -> None:
    """Return once every rank of the job has called this: on all ranks, or on none. StartTimeout
    names those that have not, RankRepeated says that this rank has called it before, or the job's
    store has gone.
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
    except StoreError as error:  # it was there before any rank was begun
        raise RankRepeated(f"rank {env.rank} was begun when its job was over: {error}") from None


def _set(variables: Mapping[str, str]) -> None:
    """Let these be all variables that say where a worker stands."""
    for name in ALL_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(variables)
