"""Finds the store through which the workers of init_rpc() find each other. It lives as long as they
do.

Under torshrun the node's agent serves it. Elsewhere rank 0 serves it. With a world size, it is at
an address that rank 0 publishes through the store of the default group, or through the place where
that store would be, which is free again afterwards. Without a world size, it is at that place
itself, where others may come at any time.
"""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack
from dataclasses import dataclass

from torsh_runtime.backends.native.network import Network, secret_of
from torsh_runtime.bootstrap import worker_env
from torsh_runtime.comm.authenticated_pickle import AuthenticatedPickle
from torsh_runtime.comm.default import default_group, has_default_group
from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import CommTimeout, StoreError, StoreTimeout
from torsh_runtime.job import Job, key_by_hand, store_client
from torsh_runtime.job_group import JobGroup
from torsh_runtime.launchers import completed
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore
from torsh_runtime.store.keys import KEY_BYTES, derive

_FIRST_FREE = 1 << 16
"""Ids from here on are given to workers that have no rank."""


@dataclass(frozen=True)
class Bootstrap:
    """Holds what a worker has after it has found the store."""

    client: StoreClient
    """A connection to the store of this worker's own, seen through a prefix of this init_rpc()."""
    secret: bytes
    rank: int
    world_size: int | None
    network: Network | None
    """The network through which workers of other nodes reach this one. None if there are no other
    nodes."""
    held: ExitStack
    """Closes everything that was opened."""


def bootstrap(init_method: str, rank: int, world_size: int | None, timeout: float) -> Bootstrap:
    """Find the store. Raises ConfigError for an invalid place or a job without a secret,
    CommTimeout when rank 0 does not come, and StoreError."""
    with ExitStack() as held:
        if world_size is None:
            found = _open(init_method, rank, timeout, held)
        else:
            found = _closed(init_method, rank, world_size, timeout, held)
        AuthenticatedPickle(found.secret).check()
        held.pop_all()
        return found


def _closed(
    init_method: str, rank: int, world_size: int, timeout: float, held: ExitStack
) -> Bootstrap:
    env = worker_env(init_method, rank, world_size)
    network = Network.from_environ(os.environ)
    if env.store_endpoint:
        secret = secret_of(env.secret)
        client = held.enter_context(store_client(env.store_endpoint, secret, timeout))
        turn = client.add(f"rpc/turn/{env.rank}", 1)
        scope = client.scoped(f"rpc/{turn}/")
        far = network.towards(env.store_endpoint) if env.num_nodes > 1 else None
        return Bootstrap(scope, secret, env.rank, env.world_size, far, held.pop_all())
    job, is_own = _job(env, timeout)
    try:
        turn = job.client.add(f"rpc/turn/{env.rank}", 1)
        board = job.client.scoped(f"rpc/{turn}/")
        secret = derive(job.secret, "rpc store", str(turn))
        endpoint = _served(board, env, secret, timeout, held)
        is_local = endpoint.startswith("unix:")
        client = held.enter_context(store_client(endpoint, secret, timeout))
    finally:
        if is_own:
            job.close(wait_for_peers=True)
    far = None if is_local else network.towards(endpoint)
    return Bootstrap(client, secret, env.rank, env.world_size, far, held.pop_all())


def _job(env: WorkerEnv, timeout: float) -> tuple[Job, bool]:
    """Return the job whose store the workers bootstrap over, and whether it was made for that
    alone."""
    group = default_group() if has_default_group() else None
    if isinstance(group, JobGroup):
        job = group.job
        return (job if isinstance(job, Job) else job.made()), False
    try:
        return Job.connect(env, timeout), True
    except StoreError as error:
        raise StoreError(
            f"{error}. If that is another library's store, such as torch's, give the workers a "
            f"place of their own: RpcBackendOptions(init_method='tcp://HOST:PORT')"
        ) from None


def _served(
    board: StoreClient, env: WorkerEnv, secret: bytes, timeout: float, held: ExitStack
) -> str:
    """Return the endpoint at which rank 0 serves the workers' store."""
    if env.rank == 0:
        hosted = HostedStore.start(_listen_at(board, env), secret)
        held.callback(hosted.close)
        board.put("store", hosted.endpoint.encode())
        return hosted.endpoint
    try:
        return board.wait(["store"], timeout)["store"].value.decode()
    except StoreTimeout:
        raise CommTimeout("init_rpc", 0, timeout, (0,)) from None


def _listen_at(board: StoreClient, env: WorkerEnv) -> str:
    if board.is_private():
        return f"unix:@torsh-{os.getuid()}-rpc-{secrets.token_hex(8)}"
    host = env.master_addr.strip("[]")
    return f"tcp:[{host}]:0" if ":" in host else f"tcp:{host}:0"


def _open(init_method: str, rank: int, timeout: float, held: ExitStack) -> Bootstrap:
    """Find the store of workers that come and go. With rank -1, use the environment's rank, or else
    any free id."""
    has_place = init_method.startswith("env://") and "RANK" in completed(os.environ)
    env = worker_env(init_method, *((-1, -1) if has_place else (min(abs(rank), 1), 2)))
    own_rank = env.rank if has_place and rank < 0 else rank
    network = Network.from_environ(os.environ)
    key, endpoint, is_local = secret_of(env.secret), env.store_endpoint, env.num_nodes == 1
    if not endpoint:
        key, endpoint = key_by_hand(env), _place(env)
        if own_rank == 0:
            held.enter_context(HostedStore.start(endpoint, key))
    client = held.enter_context(store_client(endpoint, key, timeout))
    if not env.store_endpoint:
        is_local = client.is_private()
    scope = client.scoped("rpc/open/")
    secret = secret_of(env.secret) or _made_secret(scope, own_rank, timeout)
    if own_rank < 0:
        own_rank = _FIRST_FREE + scope.add("ids", 1)
    far = None if is_local else network.towards(endpoint)
    return Bootstrap(scope, secret, own_rank, None, far, held.pop_all())


def _place(env: WorkerEnv) -> str:
    host = env.master_addr.strip("[]")
    return env.served_at or f"tcp:{f'[{host}]' if ':' in host else host}:{env.master_port}"


def _made_secret(store: StoreClient, rank: int, timeout: float) -> bytes:
    """Return the secret that rank 0 makes. It is empty if others than this user's processes of this
    host can read it in the store."""
    if rank == 0:
        store.put("secret", secrets.token_bytes(KEY_BYTES) if store.is_private() else b"")
    return store.wait(["secret"], timeout)["secret"].value
