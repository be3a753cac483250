"""The worker's composition root: from the environment to a process group."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from torsh_runtime.backends.base import Backend, BackendType
from torsh_runtime.backends.meeting import give_up
from torsh_runtime.backends.network import secret_of
from torsh_runtime.backends.single import SingleBackend
from torsh_runtime.comm.default import default_group, has_default_group, set_default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.groups import backend_type
from torsh_runtime.comm.seal import Seal
from torsh_runtime.comm.session import Session
from torsh_runtime.comm.timeouts import DEFAULT_TIMEOUT, Timeout, seconds
from torsh_runtime.contract import WorkerEnv, secret_text
from torsh_runtime.errors import (
    BackendUnavailable,
    CommError,
    CommTimeout,
    ConfigError,
    StoreError,
    StoreTimeout,
)
from torsh_runtime.launchers import completed, meeting_point
from torsh_runtime.status import own_page
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.keys import KEY_BYTES, derive

if TYPE_CHECKING:
    from torsh_runtime.store.hosted import HostedStore

_REQUEST = 10.0
"""Seconds that the store may take to answer."""
_FAREWELL = 5.0
"""Seconds rank 0 keeps a store it hosts itself for peers that are still closing."""
_PAUSE = 0.02
"""Seconds between two looks whether rank 0 has left an earlier group."""
_STILL_THERE = " to leave the default group that it made before"
_CLASSES = {
    BackendType.NATIVE: "NativeBackend",
    BackendType.NCCL: "NcclBackend",
    BackendType.MPI: "MpiBackend",
    BackendType.GLOO: "GlooBackend",
    BackendType.SINGLE: "SingleBackend",
}
_log = logging.getLogger("torsh_runtime")


def init_process_group(
    backend: str | BackendType | None = None,
    init_method: str | None = None,
    timeout: Timeout = None,
    world_size: int = -1,
    rank: int = -1,
) -> ProcessGroup:
    """Make the default group, and return it. The arguments stand in torch.distributed's order.

    backend: "native", "nccl", "mpi", "gloo" or "single"; None is single with one rank, else
        native, or where that cannot be used what rank 0 has of gloo and mpi. Why it was chosen is
        logged under "torsh_runtime".
    init_method: None or "env://" reads what torshrun set, or torchrun or mpiexec on one node, or
        RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand; "tcp://host:port" needs rank and
        world_size given here. Without torshrun rank 0 serves the store.
    timeout: seconds (or a timedelta) for each operation and for meeting the others; default 1800.

    Raises ConfigError for bad arguments or environment, or backends that differ from rank to rank,
    BackendUnavailable, StoreError when the store cannot be reached, CommTimeout naming the ranks
    that did not come.
    """
    if has_default_group():
        raise ConfigError("the process group exists already: call destroy_process_group() first")
    env = _worker_env(init_method or "env://", rank, world_size)
    kind = None if backend is None else backend_type(backend)
    if kind is BackendType.SINGLE and env.world_size != 1:
        raise ConfigError(f"backend 'single' is for one rank; world_size is {env.world_size}")
    group = _open(kind, env, seconds(timeout, DEFAULT_TIMEOUT))
    set_default_group(group)
    page = own_page()
    if page is not None:
        page.note_initialised()
    return group


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Leave the group; None: the default group, and all groups that were made of its ranks.

    A peer that still needs this rank gets PeerLost. Raises ConfigError if there is no default
    group.
    """
    leaving = group or default_group()
    try:
        leaving.close()
    finally:
        if has_default_group() and leaving is default_group():
            set_default_group(None)


def _open(kind: BackendType | None, env: WorkerEnv, timeout: float) -> ProcessGroup:
    if env.world_size == 1 and kind in (None, BackendType.SINGLE):
        session = Session(0, 1, _connect_alone, Seal(secrets.token_bytes(KEY_BYTES)))
        return _DefaultGroup(SingleBackend(), timeout, session)
    job = _Job.connect(env, timeout)
    try:
        backend = job.make_backend(kind, job.name, env.rank, range(env.world_size), timeout)
        session = Session(env.rank, env.world_size, job.make_backend, job.seal)
        return _DefaultGroup(backend, timeout, session, job)
    except ConfigError:
        job.close(wait_for_peers=True)  # who comes later should hear of it before the store goes
        raise
    except BaseException as error:
        job.close(wait_for_peers=env.rank != 0 and isinstance(error, CommError))
        raise


def _connect_alone(
    kind: BackendType, name: str, rank: int, ranks: Sequence[int], timeout: float
) -> Backend:
    if kind is not BackendType.SINGLE:
        raise ConfigError(
            f"the default group has one rank and backend 'single', so a group with {kind.value!r} "
            f"cannot be made: give init_process_group() a backend"
        )
    return SingleBackend()


@dataclass(frozen=True, slots=True)
class _Job:
    """A worker's connection to the store for the life of its default group."""

    env: WorkerEnv
    client: StoreClient
    hosted: HostedStore | None
    turn: int
    """How many default groups this rank has made in the job, with this one."""
    secret: bytes
    """What only the job's ranks know; empty is none."""

    @classmethod
    def connect(cls, env: WorkerEnv, timeout: float) -> _Job:
        """Reach the job's store; started by hand, rank 0 serves it."""
        secret = secret_of(env.secret)
        if env.store_endpoint:
            job = cls._joined(env, _client(env.store_endpoint, secret, timeout), None)
            return job._with_secret(timeout)
        key = derive(secret, "hand", "worker store", env.run_id)
        address = env.master_addr.strip("[]")
        host = f"[{address}]" if ":" in address else address
        endpoint = env.served_at or f"tcp:{host}:{env.master_port}"
        hosted = _host(endpoint, key) if env.rank == 0 else None
        deadline = time.monotonic() + timeout
        try:
            job = cls._joined(env, _client(endpoint, key, timeout), hosted)
            while job.turn > 1:  # that store goes with the group that rank 0 is about to leave
                job.client.close()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise CommTimeout("init_process_group", 0, timeout, (0,), _STILL_THERE)
                time.sleep(_PAUSE)
                job = cls._joined(env, _client(endpoint, key, left), hosted)
            return job._with_secret(timeout)
        except BaseException:
            if hosted is not None:
                hosted.close()
            raise

    @classmethod
    def _joined(cls, env: WorkerEnv, client: StoreClient, hosted: HostedStore | None) -> _Job:
        try:
            # Every rank counts its own calls, so that a group made again has keys of its own.
            turn = client.add(f"groups/{env.rank}", 1)
            return cls(env, client, hosted, turn, secret_of(env.secret))
        except BaseException:
            client.close()
            raise

    def _with_secret(self, timeout: float) -> _Job:
        """The same; without a secret, with one that rank 0 makes, if nobody but processes of this
        user on this host can read it in the store.
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
        """The default group's; "" is the first one's."""
        return "" if self.turn == 1 else str(self.turn)

    @property
    def seal(self) -> Seal:
        return Seal(self.secret)

    def make_backend(
        self,
        kind: BackendType | None,
        name: str,
        rank: int,
        ranks: Sequence[int],
        timeout: float,
    ) -> Backend:
        """This rank's end of a new group; `rank` is its place among `ranks`."""
        if (
            len(ranks) == 1
            and kind in (BackendType.NATIVE, BackendType.SINGLE)
            and name != self.name
        ):
            return SingleBackend()
        deadline = time.monotonic() + timeout
        store = self.client.scoped(f"group/{self.turn}/{name}/")
        try:
            agreed = _agree(store, kind, rank, ranks, timeout)
        except BaseException as error:
            give_up(store, rank, error)
            raise
        left = max(deadline - time.monotonic(), 0.001)
        return _make_backend(agreed, store, rank, len(ranks), left, name)

    def close(self, wait_for_peers: bool) -> None:
        """Let go of the store; if this rank hosts it, perhaps not before the peers have."""
        try:
            if wait_for_peers and not self.env.store_endpoint:
                self._take_leave()
        except StoreError:
            pass  # the store went before us; there is nobody left to tell
        finally:
            self.client.close()
            if self.hosted is not None:
                self.hosted.close()

    def _take_leave(self) -> None:
        if self.hosted is None:
            self.client.put(f"left/{self.env.rank}", b"")
        else:
            self.client.wait([f"left/{r}" for r in range(1, self.env.world_size)], _FAREWELL)


class _DefaultGroup(ProcessGroup):
    """The default group, which owns the job; without one it is a group of one rank."""

    def __init__(
        self, backend: Backend, timeout: float, session: Session, job: _Job | None = None
    ) -> None:
        super().__init__(backend, timeout, name=job.name if job else "", session=session)
        self._job = job

    def close(self) -> None:
        failed = self._backend.failed
        try:
            self.session.close()
        finally:
            super().close()
            if self._job is not None:
                self._job.close(wait_for_peers=not failed)


def _agree(
    store: StoreClient, kind: BackendType | None, rank: int, ranks: Sequence[int], timeout: float
) -> BackendType:
    """The backend of a group: its first rank's. ConfigError if this rank was told another one."""
    chosen = kind or (_choose() if rank == 0 else None)
    keys = [f"backend/{peer}" for peer in range(len(ranks))]
    store.put(keys[rank], chosen.value.encode() if chosen else b"")
    if rank == 0 and chosen:
        return chosen
    try:
        entry = store.wait(keys[:1], timeout)[keys[0]]
    except StoreTimeout:
        missing = [peer for peer, key in enumerate(keys) if store.get(key) is None]
        raise CommTimeout("init_process_group", 0, timeout, missing) from None
    first = backend_type(entry.value.decode(errors="replace"))
    if chosen not in (None, first):
        raise ConfigError(
            f"rank {ranks[rank]} was given backend {kind} and rank {ranks[0]} {first}: give "
            f"all ranks of a group the same"
        )
    return first


def _choose() -> BackendType:
    """What a job gets that names no backend."""
    try:
        import_module("torsh_runtime.backends.library")
    except BackendUnavailable as error:
        for kind in (BackendType.GLOO, BackendType.MPI):
            if import_module(f"torsh_runtime.backends.{kind.value}").is_available():
                _log.warning("backend %s, because %s", kind.value, error)
                return kind
        raise
    _log.info("backend native: it is the fastest on CPUs, and none was asked for")
    return BackendType.NATIVE


def _make_backend(
    kind: BackendType, store: StoreClient, rank: int, world_size: int, timeout: float, name: str
) -> Backend:
    if kind is BackendType.NATIVE:
        from torsh_runtime.backends.native import NativeBackend

        return NativeBackend.connect(store, rank, world_size, timeout, name)
    module = import_module(f"torsh_runtime.backends.{kind.value}")
    connect: Any = getattr(module, _CLASSES[kind]).connect
    backend: Backend = connect(store, rank, world_size, timeout)
    return backend


def _client(endpoint: str, secret: bytes, timeout: float) -> StoreClient:
    return StoreClient.connect(endpoint, secret, timeout, request_timeout=_REQUEST)


def _host(endpoint: str, secret: bytes) -> HostedStore:
    from torsh_runtime.store.hosted import HostedStore  # loads asyncio, which few workers need

    return HostedStore.start(endpoint, secret)


def _worker_env(init_method: str, rank: int, world_size: int) -> WorkerEnv:
    given = {"rank": rank, "world_size": world_size}
    overrides = {name: value for name, value in given.items() if value != -1}
    if init_method.startswith("env://"):
        names = {name.upper(): str(value) for name, value in overrides.items()}
        environ = {**completed(os.environ), **names}
        return replace(WorkerEnv.from_environ(environ), served_at=meeting_point(os.environ))
    host, port = _host_and_port(init_method)
    if len(overrides) != len(given):
        raise ConfigError(f"init_method {init_method!r} needs rank and world_size")
    env = WorkerEnv(
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        local_world_size=world_size,
        master_addr=host,
        master_port=port,
        secret=secret_text(os.environ),
    )
    return WorkerEnv.from_environ(env.to_environ())


def _host_and_port(init_method: str) -> tuple[str, int]:
    try:
        method = urlsplit(init_method)
        host, port = method.hostname, method.port
    except ValueError:  # an unclosed bracket, a port that is none
        method, host, port = urlsplit(""), None, None
    if method.scheme != "tcp" or not host or not port:
        raise ConfigError(f"init_method {init_method!r} is neither env:// nor tcp://host:port")
    return host, port
