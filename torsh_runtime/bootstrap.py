"""The worker's composition root: from the environment to a process group."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from torsh_runtime.backends.base import Backend, BackendType
from torsh_runtime.backends.single import SingleBackend
from torsh_runtime.comm.default import default_group, has_default_group, set_default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import BackendUnavailable, ConfigError, StoreError
from torsh_runtime.status import own_page
from torsh_runtime.store.client import StoreClient

if TYPE_CHECKING:
    from torsh_runtime.store.hosted import HostedStore

DEFAULT_TIMEOUT = 1800.0
"""Seconds an operation may take unless init_process_group is told otherwise, as in torch."""
LONGEST_TIMEOUT = 30 * 86400.0
"""Seconds, 30 days: more is taken for a mistake."""
_REQUEST = 10.0
"""Seconds that the store may take to answer."""
_FAREWELL = 5.0
"""Seconds rank 0 keeps a store it hosts itself for peers that are still closing."""


def init_process_group(
    backend: str | BackendType | None = None,
    init_method: str = "env://",
    rank: int = -1,
    world_size: int = -1,
    timeout: float | timedelta | None = None,
) -> ProcessGroup:
    """Make the default group, and return it.

    backend: "native", "single", or None for native with more than one rank and single with one.
    init_method: "env://" reads what torshrun set, or RANK, WORLD_SIZE, MASTER_ADDR and
        MASTER_PORT set by hand; "tcp://host:port" needs rank and world_size given here. Without
        torshrun rank 0 serves the store on that address.
    timeout: seconds (or a timedelta) for each operation and for meeting the others; default 1800.

    Raises ConfigError for bad arguments or environment, BackendUnavailable, StoreError when the
    store cannot be reached, CommTimeout naming the ranks that did not come.
    """
    if has_default_group():
        raise ConfigError("the process group exists already: call destroy_process_group() first")
    env = _worker_env(init_method, rank, world_size)
    seconds = _seconds(timeout)
    kind = _backend_type(backend, env.world_size)
    group = _Session.open(kind, env, seconds)
    set_default_group(group)
    page = own_page()
    if page is not None:
        page.note_initialised()
    return group


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Leave the group (None: the default group). A peer that still needs this rank gets PeerLost.

    Raises ConfigError if there is no default group.
    """
    leaving = group or default_group()
    try:
        leaving.close()
    finally:
        if has_default_group() and leaving is default_group():
            set_default_group(None)


@dataclass(frozen=True, slots=True)
class _Session:
    """A worker's connection to the store for the life of its default group."""

    env: WorkerEnv
    client: StoreClient
    hosted: HostedStore | None

    @classmethod
    def open(cls, kind: BackendType, env: WorkerEnv, timeout: float) -> ProcessGroup:
        if kind is BackendType.SINGLE:
            return ProcessGroup(SingleBackend(), timeout)
        session = cls._connect(env, timeout)
        try:
            return _SessionGroup(session.make_backend(timeout), timeout, session)
        except BaseException:
            session.close(wait_for_peers=False)
            raise

    @classmethod
    def _connect(cls, env: WorkerEnv, timeout: float) -> _Session:
        secret = _secret(env)
        if env.store_endpoint:
            return cls(env, _client(env.store_endpoint, secret, timeout), None)
        address = env.master_addr.strip("[]")
        host = f"[{address}]" if ":" in address else address
        endpoint = f"tcp:{host}:{env.master_port}"
        hosted = _host(endpoint, secret) if env.rank == 0 else None
        try:
            return cls(env, _client(endpoint, secret, timeout), hosted)
        except BaseException:
            if hosted is not None:
                hosted.close()
            raise

    def make_backend(self, timeout: float) -> Backend:
        from torsh_runtime.backends.native import NativeBackend

        # Every rank counts its own calls, so that a group made again has keys of its own.
        turn = self.client.add(f"groups/{self.env.rank}", 1)
        store = self.client.scoped(f"group/{turn}/")
        return NativeBackend.connect(store, self.env.rank, self.env.world_size, timeout)

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


def _secret(env: WorkerEnv) -> bytes:
    try:
        return bytes.fromhex(env.secret)
    except ValueError:
        raise ConfigError("TORSH_SECRET is not hexadecimal (torshrun sets it itself)") from None


def _client(endpoint: str, secret: bytes, timeout: float) -> StoreClient:
    return StoreClient.connect(endpoint, secret, timeout, request_timeout=_REQUEST)


def _host(endpoint: str, secret: bytes) -> HostedStore:
    from torsh_runtime.store.hosted import HostedStore  # loads asyncio, which few workers need

    return HostedStore.start(endpoint, secret)


class _SessionGroup(ProcessGroup):
    """The default group, which owns the session."""

    def __init__(self, backend: Backend, timeout: float, session: _Session) -> None:
        super().__init__(backend, timeout)
        self._session = session

    def close(self) -> None:
        super().close()
        self._session.close(wait_for_peers=not self._backend.failed)


def _worker_env(init_method: str, rank: int, world_size: int) -> WorkerEnv:
    given = {"rank": rank, "world_size": world_size}
    overrides = {name: value for name, value in given.items() if value != -1}
    if init_method.startswith("env://"):
        names = {name.upper(): str(value) for name, value in overrides.items()}
        return WorkerEnv.from_environ({**os.environ, **names})
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
        secret=os.environ.get("TORSH_SECRET", ""),
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


def _seconds(timeout: float | timedelta | None) -> float:
    if timeout is None:
        return DEFAULT_TIMEOUT
    try:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    except (TypeError, ValueError):
        raise ConfigError(f"timeout {timeout!r} is no number of seconds") from None
    if not 0 < seconds <= LONGEST_TIMEOUT:
        raise ConfigError(
            f"timeout must be more than 0 and at most {LONGEST_TIMEOUT:g} s (30 days), not "
            f"{seconds:g} s"
        )
    return seconds


def _backend_type(name: str | BackendType | None, world_size: int) -> BackendType:
    if name is None:
        return BackendType.NATIVE if world_size > 1 else BackendType.SINGLE
    try:
        kind = BackendType(name)
    except ValueError:
        known = ", ".join(BackendType)
        raise BackendUnavailable(f"backend {name!r}", f"Known backends: {known}.") from None
    if kind is BackendType.SINGLE and world_size != 1:
        raise ConfigError(f"backend 'single' is for one rank; world_size is {world_size}")
    return kind
