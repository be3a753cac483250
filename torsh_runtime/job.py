"""A worker's job: the store through which its ranks connect, and the backends of its groups."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torsh_runtime.backends.base import Backend, BackendKind, BackendType, ByDevice
from torsh_runtime.backends.bootstrap_store import BootstrapStore, post_abort
from torsh_runtime.backends.native.network import secret_of
from torsh_runtime.backends.recorder import note_group
from torsh_runtime.backends.registry import backend_class, is_available
from torsh_runtime.backends.single import SingleBackend
from torsh_runtime.comm.authenticated_pickle import AuthenticatedPickle
from torsh_runtime.comm.choosing import backend_type
from torsh_runtime.comm.registry import Configure, GroupRegistry
from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import (
    BackendUnavailable,
    CommTimeout,
    ConfigError,
    StoreError,
    StoreTimeout,
)
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.endpoint import parse_endpoint
from torsh_runtime.store.keys import KEY_BYTES, derive
from torsh_runtime.store.user import Store

if TYPE_CHECKING:
    from torsh_runtime.store.hosted import HostedStore

REQUEST = 10.0
"""Seconds that the store may take to answer."""
_FAREWELL = 5.0
"""Seconds for which rank 0 keeps a store that it serves for peers that are still closing."""
_PAUSE = 0.02
"""Seconds between two checks whether rank 0 has left an earlier group."""
_STILL_THERE = " to leave the default group that it made before"
_log = logging.getLogger("torsh_runtime")


ALONE = (None, BackendType.NATIVE, BackendType.SINGLE)
"""Backends for which a group of one rank needs no connections (None: the default)."""


@dataclass(frozen=True, slots=True)
class Job:
    """Holds a worker's connection to the store for the life of its default group."""

    env: WorkerEnv
    client: StoreClient
    hosted: HostedStore | None
    turn: int
    """Number of default groups that this rank has created in the job, including this one."""
    secret: bytes
    """Secret that only the job's ranks know; empty if there is none."""
    members: Sequence[int]
    """The ranks of the default group, as numbered by the job's launcher."""
    is_whole: bool = True
    """True if all members belong to that job."""

    @classmethod
    def connect(cls, env: WorkerEnv, timeout: float) -> Job:
        """Connect to the job's store within `timeout` seconds and return the job.

        If no agent serves a store, rank 0 serves it. Raises StoreError or ConfigError when the
        store cannot be reached or served, CommTimeout when rank 0 does not come.
        """
        secret = secret_of(env.secret)
        if env.store_endpoint:
            job = cls._joined(env, store_client(env.store_endpoint, secret, timeout), None)
            return job._with_secret(timeout)
        key = key_by_hand(env)
        address = env.master_addr.strip("[]")
        host = f"[{address}]" if ":" in address else address
        endpoint = env.served_at or f"tcp:{host}:{env.master_port}"
        deadline = time.monotonic() + timeout
        hosted = _host(endpoint, key, deadline) if env.rank == 0 else None
        try:
            job = cls._joined(env, store_client(endpoint, key, timeout), hosted)
            while job.turn > 1:  # that store ends with the group that rank 0 is about to leave
                job.client.close()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise CommTimeout("init_process_group", 0, timeout, (0,), _STILL_THERE)
                time.sleep(_PAUSE)
                job = cls._joined(env, store_client(endpoint, key, left), hosted)
            return job._with_secret(timeout)
        except BaseException:
            if hosted is not None:
                hosted.close()
            raise

    @classmethod
    def _joined(cls, env: WorkerEnv, client: StoreClient, hosted: HostedStore | None) -> Job:
        try:
            # Every rank counts its own calls, so that each default group has keys of its own. A
            # replacement comes to the survivors' group, which is their first one.
            turn = 1 if env.is_replacement else client.add(f"groups/{env.rank}", 1)
            return cls(env, client, hosted, turn, secret_of(env.secret), range(env.world_size))
        except BaseException:
            client.close()
            raise

    def _with_secret(self, timeout: float) -> Job:
        """Return the job with a secret.

        If it has none, rank 0 creates one and puts it into the store, provided that only processes
        of this user on this host can read it there. Raises CommTimeout when rank 0 does not.
        """
        if self.secret:
            return self
        try:
            here = self.hosted.is_private if self.hosted else self.env.num_nodes == 1
            private = here and self.client.is_private()
            key = f"secret/{self.turn}"
            if self.env.rank == 0:
                self.client.put(key, secrets.token_bytes(KEY_BYTES) if private else b"")
            made = self.client.wait([key], timeout)[key].value
            return replace(self, secret=made if private else b"")
        except StoreTimeout:
            self.client.close()
            raise CommTimeout("init_process_group", 0, timeout, (0,)) from None
        except BaseException:
            self.client.close()
            raise

    @property
    def name(self) -> str:
        """Return the default group's name, which is "" for the first one."""
        return "" if self.turn == 1 else str(self.turn)

    @property
    def seal(self) -> AuthenticatedPickle:
        return AuthenticatedPickle(self.secret)

    def make_backend(
        self,
        kind: BackendKind | None,
        name: str,
        rank: int,
        ranks: Sequence[int],
        timeout: float,
        parent: Backend | None = None,
        strategy: str | None = None,
    ) -> Backend:
        """Create this rank's backend of a new group; `rank` is its index in `ranks`.

        kind: the backend; None to let the group's first rank choose it.
        timeout: seconds for connecting to the other ranks.
        parent: the default group's backend, which may have its own way to create it.
        strategy: as NativeBackend.connect() takes it, for the native backend only.

        Raises ConfigError when ranks were given different backends.
        """
        if len(ranks) == 1 and kind in ALONE:
            return SingleBackend(kind)
        deadline = time.monotonic() + timeout
        store = self.client.scoped(f"group/{self.turn}/{name}/")
        for member in parent.members if parent is not None else ():
            made = member.subgroup(store, name, ranks, timeout) if kind is member.type else None
            if made is not None:
                return made
        try:
            agreed = _agree(store, kind, rank, ranks, max(deadline - time.monotonic(), 0.001))
            left = max(deadline - time.monotonic(), 0.001)
            if isinstance(agreed, ByDevice):
                return self._by_device(agreed, store, name, rank, ranks, left, parent)
            is_parent = parent is None
            made = _make_backend(agreed, store, rank, len(ranks), left, name, is_parent, strategy)
        except BaseException as error:
            post_abort(store, rank, error)
            raise
        if agreed is not BackendType.NATIVE:  # which records itself
            job_ranks = self._job_ranks(ranks, parent)
            note_group(name, len(ranks), job_ranks)
            made.note_as(name, job_ranks)
        return made

    def _job_ranks(self, ranks: Sequence[int], parent: Backend | None) -> Sequence[int]:
        """Return the members of a group as ranks of the job; () if they are unknown."""
        if not self.is_whole:
            return ()
        return self.members if parent is None else [self.members[rank] for rank in ranks]

    def _by_device(
        self,
        kind: ByDevice,
        store: StoreClient,
        name: str,
        rank: int,
        ranks: Sequence[int],
        timeout: float,
        parent: Backend | None,
    ) -> Backend:
        from torsh_runtime.backends.by_device import ByDeviceBackend  # few groups need it

        board = BootstrapStore(store, rank, timeout, kind)
        board.exchange("devices", b"", range(len(ranks)))  # ranks given other kinds fail here
        made: list[Any] = []
        try:
            for device, each in kind._asdict().items():
                own, left = f"{name}/{device}", board.remaining()
                made.append(self.make_backend(each, own, rank, ranks, left, parent))
        except BaseException as error:
            for device in kind._fields:  # peers may wait for this rank in any of them
                post_abort(store.scoped(f"{device}/"), rank, error)
            for member in made:
                member.close()
            raise
        return ByDeviceBackend(kind, *made)

    def session(self, default: Backend, configure: Configure | None = None) -> GroupRegistry:
        """Return the registry that creates groups from the default group and configures them."""
        rank = self.members.index(self.env.rank)
        local = self.env.local_world_size
        connect = partial(self.make_backend, parent=default)
        return GroupRegistry(rank, len(self.members), connect, self.seal, local, configure)

    def store(self, timeout: float) -> Store:
        """Return the part of the store for the program's own keys, empty for each default group."""
        return Store(self.client.scoped(f"program/{self.turn}/"), timeout)

    def shrunk(self, staying: Sequence[int]) -> Job:
        """Return the job with only the ranks `staying`, indices in `members`.

        Raises ConfigError if the rank that serves the store is not among them.
        """
        members = [self.members[place] for place in staying]
        if not self.env.store_endpoint and 0 not in members:
            raise ConfigError(
                "rank 0 serves the store of this job, which cannot go on without: start it with "
                "torshrun, whose agent serves it"
            )
        return replace(self, members=members)

    def close(self, wait_for_peers: bool) -> None:
        """Release the store.

        If `wait_for_peers`, and a rank serves it, that rank first waits for the others to leave,
        for a few seconds; the others notify it.
        """
        try:
            if wait_for_peers and not self.env.store_endpoint:
                self._take_leave()
        except StoreError:
            pass  # the store has already ended, so there is no peer to notify
        finally:
            self.client.close()
            if self.hosted is not None:
                self.hosted.close()

    def _take_leave(self) -> None:
        if self.hosted is None:
            self.client.put(f"left/{self.env.rank}", b"")
        else:
            others = [rank for rank in self.members if rank != self.env.rank]
            self.client.wait([f"left/{rank}" for rank in others], _FAREWELL)


class LateJob:
    """Represents the job of a default group of one rank, and connects to a store only on first use.

    Without torshrun it serves a store that only this process reaches.
    """

    def __init__(self, env: WorkerEnv, timeout: float) -> None:
        self.env = env
        self._at = env if env.store_endpoint else _apart(env)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._job: Job | None = None
        self.name = ""
        self.secret = secrets.token_bytes(KEY_BYTES)

    def made(self) -> Job:
        """Return the job, connected to its store. Raises StoreError if that cannot be reached."""
        with self._lock:
            if self._job is None:
                self._job = Job.connect(self._at, self._timeout)
            return self._job

    def make_backend(
        self,
        kind: BackendKind,
        name: str,
        rank: int,
        ranks: Sequence[int],
        timeout: float,
        strategy: str | None = None,
    ) -> Backend:
        """Create a backend as Job.make_backend() does, without a store where none is needed."""
        if kind in ALONE:
            return SingleBackend(kind)
        return self.made().make_backend(kind, name, rank, ranks, timeout, strategy=strategy)

    def store(self, timeout: float) -> Store:
        """Return the part of the store for the program's own keys, as Job.store() does."""
        return self.made().store(timeout)

    def session(self, default: Backend, configure: Configure | None = None) -> GroupRegistry:
        """Return the registry of groups, as Job.session() does."""
        return GroupRegistry(
            0, 1, self.make_backend, AuthenticatedPickle(self.secret), configure=configure
        )

    def close(self, wait_for_peers: bool) -> None:
        """Release the store, if there is one, as Job.close() does."""
        if self._job is not None:
            self._job.close(wait_for_peers)


def _apart(env: WorkerEnv) -> WorkerEnv:
    """Return `env` with a store that no other process finds.

    Several jobs of one rank may have the same MASTER_PORT.
    """
    served_at = f"unix:@torsh-{os.getuid()}-alone-{secrets.token_hex(8)}"
    return replace(env, served_at=served_at, secret=env.secret or secrets.token_hex(KEY_BYTES))


def _agree(
    store: StoreClient, kind: BackendKind | None, rank: int, ranks: Sequence[int], timeout: float
) -> BackendKind:
    """Return the backend of a group, which its first rank chooses.

    Raises ConfigError if this rank was given a different one.
    """
    chosen = kind or (_choose() if rank == 0 else None)
    value = chosen.value.encode() if chosen else b""
    if chosen and rank == 0:
        store.put("backend/0", value)
        return chosen
    told = BootstrapStore(store, rank, timeout, chosen).exchange("backend", value, [0])
    first = backend_type(told[0].decode(errors="replace"))
    if chosen not in (None, first):
        raise ConfigError(
            f"rank {ranks[rank]} was given backend {kind} and rank {ranks[0]} {first}: give "
            f"all ranks of a group the same"
        )
    return first


def _choose() -> BackendType:
    """Return the default backend: native, else gloo or mpi, else raise BackendUnavailable."""
    try:
        import_module("torsh_runtime.backends.native.compiled")
    except BackendUnavailable as error:
        for kind in (BackendType.GLOO, BackendType.MPI):
            if is_available(kind):
                _log.warning("backend %s, because %s", kind.value, error)
                return kind
        raise
    _log.info("backend native: it is the fastest on CPUs, and none was asked for")
    return BackendType.NATIVE


def _make_backend(
    kind: BackendType,
    store: StoreClient,
    rank: int,
    world_size: int,
    timeout: float,
    name: str,
    is_parent: bool,
    strategy: str | None,
) -> Backend:
    """Create a backend; `is_parent` says whether further groups are created from it."""
    connect = backend_class(kind).connect
    options: dict[str, Any] = {}
    if kind is BackendType.NATIVE:
        options = {"name": name, "share_arrays": is_parent, "subgroups": is_parent}
        options["strategy"] = strategy
    backend: Backend = connect(store, rank, world_size, timeout, **options)
    return backend


def store_client(endpoint: str, secret: bytes, timeout: float) -> StoreClient:
    return StoreClient.connect(endpoint, secret, timeout, request_timeout=REQUEST)


def key_by_hand(env: WorkerEnv) -> bytes:
    """Return the key that proves to a store which no agent serves that a process is of its job."""
    return derive(secret_of(env.secret), "hand", "worker store", env.run_id)


def _host(endpoint: str, secret: bytes, deadline: float) -> HostedStore:
    from torsh_runtime.store.hosted import HostedStore, await_name  # few workers need it

    await_name(parse_endpoint(endpoint), deadline)
    return HostedStore.start(endpoint, secret)
