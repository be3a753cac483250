"""The worker's composition root: creates its process group from its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from torsh_runtime.backends.base import Backend, BackendKind, BackendType
from torsh_runtime.backends.reconfiguration import Unmet
from torsh_runtime.backends.registry import backend_class
from torsh_runtime.backends.single import SingleBackend
from torsh_runtime.comm.choosing import backend_type, check_no_options, chosen_type, use_device
from torsh_runtime.comm.default import default_group, has_default_group, set_default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.timeouts import DEFAULT_TIMEOUT, Timeout, seconds
from torsh_runtime.contract import WorkerEnv, secret_text
from torsh_runtime.errors import CommError, ConfigError
from torsh_runtime.job import ALONE, Job, LateJob, key_by_hand
from torsh_runtime.job_group import JobGroup
from torsh_runtime.launchers import completed, meeting_point
from torsh_runtime.status import own_page
from torsh_runtime.store.user import Store
from torsh_runtime.transitions import Machine

if TYPE_CHECKING:
    from torsh_runtime.store.hosted import HostedStore

_SEEN = Machine("default_group", "none")


def init_process_group(
    backend: str | BackendType | None = None,
    init_method: str | None = None,
    timeout: Timeout = None,
    world_size: int = -1,
    rank: int = -1,
    store: None = None,
    group_name: str = "",
    pg_options: None = None,
    device_id: object = None,
) -> ProcessGroup:
    """Create the default group, and return it.

    The arguments are in torch.distributed's order. With one rank everything works as with several.
    Why a backend was chosen is logged under "torsh_runtime".

    Args:
        backend: "native", "nccl", "mpi", "gloo" or "single", or one for each kind of device, such
            as "cpu:native,cuda:nccl": then an operation goes to the one that serves its arrays, and
            barriers and objects to the one of the CPUs. None is single with one rank, otherwise
            native or, where that cannot be used, what rank 0 has of gloo and mpi.
        init_method: None or "env://" reads what torshrun set, or torchrun or mpiexec on one node,
            or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand; "tcp://host:port" needs
            `rank` and `world_size`. Without torshrun rank 0 serves the store.
        timeout: Seconds or a timedelta, for each operation and for the rendezvous, at most 30 days;
            None is 1800 seconds.
        world_size: The number of ranks; -1 is what the environment says.
        rank: This process's rank; -1 is what the environment says.
        store: Must be None.
        group_name: Makes no difference.
        pg_options: Must be None.
        device_id: The GPU that becomes this thread's current one, by number or as torch's device;
            without `backend` that is then "cpu:native,cuda:nccl".

    Returns:
        The default group.

    Raises:
        ConfigError: For wrong arguments or environment, if the default group exists, or if backends
            differ from rank to rank.
        BackendUnavailable: If the backend is unknown or cannot be used here.
        StoreError: If the store cannot be reached.
        CommTimeout: If ranks did not come in time; it names them.

    Example:
        ```python
        tr.init_process_group(timeout=600)  # seconds
        tr.all_reduce(gradient)
        tr.destroy_process_group()
        ```
    """
    if has_default_group():
        raise ConfigError("the process group exists already: call destroy_process_group() first")
    check_no_options(pg_options)
    if store is not None:
        raise ConfigError(
            "the ranks meet over the job's own store, torshrun's or rank 0's: leave store out, and "
            "without a launcher give init_method='tcp://HOST:PORT'. Afterwards get_store() is a "
            "store for the job's ranks"
        )
    env = worker_env(init_method or "env://", rank, world_size)
    kind = chosen_type(backend, device_id)
    if kind is BackendType.SINGLE and env.world_size != 1:
        raise ConfigError(f"backend 'single' is for one rank; world_size is {env.world_size}")
    use_device(device_id, kind)
    if sys.modules.get("torch") is not None:
        from torsh_runtime.integrations.torch.allocator import tune_allocator

        tune_allocator()  # before there is a model, since torch uses huge pages from then on
    with _SEEN.during("meeting", "ready", f"{env.world_size} ranks"):
        group = open_group(kind, env, seconds(timeout, DEFAULT_TIMEOUT))
    set_default_group(group)
    page = own_page()
    if page is not None:
        page.note_initialised()
    return group


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Leave a group.

    A peer that still needs this rank gets PeerLost.

    Args:
        group: The group; None is the default group, with all groups that were made of its ranks.

    Raises:
        ConfigError: If `group` is None and there is no default group.

    Example:
        ```python
        tr.init_process_group()
        tr.barrier()
        tr.destroy_process_group()
        ```
    """
    leaving = group or default_group()
    try:
        leaving.close()
    finally:
        if has_default_group() and leaving is default_group():
            set_default_group(None)
            _SEEN.become("none")


def get_store() -> Store:
    """Return the store of the default group's job, for keys of the program's own; see Store.

    It exists until the default group is destroyed, and is empty for the next. Its timeout is the
    group's.

    Raises:
        ConfigError: If there is no default group.
        StoreError: If the store is gone.

    Example:
        ```python
        store = tr.get_store()
        store.set(f"host/{tr.get_rank()}", socket.gethostname())
        store.get("host/0")  # waits for rank 0
        ```
    """
    group = default_group()
    if not isinstance(group, JobGroup):
        raise ConfigError("init_process_group() did not make the default group: it has no store")
    return group.store()


def serve_store(address: str) -> HostedStore:
    """Serve a store for groups that are configured over it; see ProcessGroup.configure().

    It runs in a thread until it is closed or this process ends. If TORSH_SECRET is set, only those
    who know it are let in; otherwise this user's processes on this host, and whoever reaches the
    port from a different host.

    Args:
        address: "host:port"; port 0 is a free one.

    Returns:
        The store, whose close() ends it.

    Raises:
        ConfigError: If `address` is not an address.
        StoreError: If the address is not free.

    Example:
        ```python
        with tr.serve_store("0.0.0.0:29600"):
            wait_for_the_job()
        ```
    """
    from torsh_runtime.store.hosted import HostedStore  # loads asyncio, which few workers need

    env = {"RANK": "0", "WORLD_SIZE": "1", **os.environ}
    return HostedStore.start(f"tcp:{address}", key_by_hand(WorkerEnv.from_environ(env)))


def shrink_group(
    ranks_to_exclude: Sequence[int],
    group: ProcessGroup | None = None,
    shrink_flags: int = 0,
    pg_options: None = None,
) -> ProcessGroup:
    """Create a group of the other ranks of `group`, which may have failed.

    The ranks that stay call it; these only have to be alive. The excluded ones do not call it. Of
    the default group it makes a new default group, in which ranks count from 0 again; the old one
    and all that was made of it are left. A different group stays unchanged. A job without torshrun
    cannot do without rank 0, which serves its store.

    Args:
        ranks_to_exclude: Ranks of `group`, as the group's own, at least one.
        group: The process group; None is the default group.
        shrink_flags: 1 aborts the group first (torch's SHRINK_ABORT), so that operations of its
            other threads end; otherwise 0.
        pg_options: Must be None.

    Returns:
        The new group.

    Raises:
        ConfigError: For ranks that cannot be excluded, and as in new_group.
        BackendUnavailable: As in new_group.
        CommTimeout: If ranks that stay did not come; it names them.

    Example:
        ```python
        try:
            tr.all_reduce(gradient)
        except tr.PeerLost as error:
            tr.shrink_group([error.rank])
        ```
    """
    check_no_options(pg_options)
    old = group or default_group()
    staying = _staying(old, ranks_to_exclude)
    if shrink_flags not in (0, 1):
        raise ConfigError(f"shrink_flags is {shrink_flags!r}; it must be 0, or 1 to abort before")
    if shrink_flags:
        old.abort()
    if isinstance(old, JobGroup):
        made = old.shrunk(staying)
        set_default_group(made)
        return made
    members = [old.global_rank(rank) for rank in staying]
    return old.session.group(old.name, members, backend_type(old.backend), old.timeout)


def _staying(group: ProcessGroup, excluded: Sequence[int]) -> list[int]:
    staying = [rank for rank in range(group.world_size) if rank not in excluded]
    if len(staying) + len(excluded) != group.world_size or not excluded or not staying:
        raise ConfigError(
            f"ranks_to_exclude is {list(excluded)}; it must name some of the group's ranks, 0 to "
            f"{group.world_size - 1}, each once, and leave some"
        )
    if group.rank in excluded:
        raise ConfigError(f"rank {group.rank} is excluded: only the ranks that stay call this")
    return staying


def open_group(kind: BackendKind | None, env: WorkerEnv, timeout: float) -> ProcessGroup:
    """Create the group of all ranks of a job, without making it the default group, and return it.

    `timeout` is the seconds for connecting to the ranks and for each operation. Raises what
    init_process_group() raises."""
    late = LateJob(env, timeout) if env.world_size == 1 else None
    if late is not None and kind in ALONE:
        return JobGroup(SingleBackend(kind), timeout, late)
    job = Job.connect(env, timeout) if late is None else late.made()
    if env.is_replacement and kind in ALONE:  # the others are past this: see elastic.join()
        backend_class(BackendType.NATIVE)  # what it lacks is found out before it is needed
        return JobGroup(cast(Backend, Unmet(env.rank, env.world_size)), timeout, job)
    try:
        backend = job.make_backend(kind, job.name, env.rank, range(env.world_size), timeout)
        return JobGroup(backend, timeout, job)
    except ConfigError:
        job.close(wait_for_peers=True)  # so that late ranks learn of it before the store ends
        raise
    except BaseException as error:
        job.close(wait_for_peers=env.rank != 0 and isinstance(error, CommError))
        raise


def worker_env(init_method: str, rank: int, world_size: int) -> WorkerEnv:
    """Return this process's place in the job, from the arguments of init_process_group().

    A rank or world size of -1 is taken from the environment. Raises ConfigError where that lacks
    what is needed."""
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
