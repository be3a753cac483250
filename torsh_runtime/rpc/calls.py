"""Provides torch.distributed.rpc's functions: init_rpc(), shutdown() and the calls between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from torsh_runtime.backends.future import Future
from torsh_runtime.rpc.agent import Agent
from torsh_runtime.rpc.bootstrap import bootstrap
from torsh_runtime.rpc.current import current_agent, has_agent, set_agent
from torsh_runtime.rpc.directory import check_name
from torsh_runtime.rpc.failures import CallRefused
from torsh_runtime.rpc.leaving import leave
from torsh_runtime.rpc.options import (
    UNSET_RPC_TIMEOUT,
    BackendType,
    RpcBackendOptions,
    WorkerInfo,
    seconds,
)
from torsh_runtime.rpc.rref import RRef, created

Timeout = float | timedelta | None
Function = Callable[..., Any] | str
To = str | int | WorkerInfo
_MEETING_SECONDS = 1800.0


def init_rpc(
    name: str,
    backend: BackendType | None = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: RpcBackendOptions | None = None,
) -> None:
    """Take part in remote calls.

    From now on others can call functions in this process, and this process can call theirs. It
    needs no process group, and does not disturb one.

    Args:
        name: The name of this worker; no other has it.
        backend: Makes no difference.
        rank: This worker's id; -1 is what torshrun, torchrun, mpiexec, srun or RANK says.
        world_size: The number of workers; the call returns when all have come. None: workers come
            and go; without torshrun one of them has rank 0, serves the store and must stay, and one
            that is given no rank gets an id that is free.
        rpc_backend_options: Timeouts, threads and the place to rendezvous.

    Raises:
        ConfigError: For wrong arguments.
        CallRefused: If init_rpc() was called already.
        CommTimeout: If workers did not come within 1800 seconds; it names their ranks.
        StoreError: If the store cannot be reached.

    Example:
        ```python
        tr.rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        tr.rpc.rpc_sync("worker1", numpy.add, args=(1, 2))  # 3
        tr.rpc.shutdown()
        ```
    """
    if has_agent():
        raise CallRefused("init_rpc() was called already: call shutdown() before")
    options = rpc_backend_options or RpcBackendOptions()
    check_name(name)
    meeting = bootstrap(options.init_method, rank, world_size, _MEETING_SECONDS)
    try:
        agent = Agent(name, meeting, options)
    except BaseException:
        meeting.held.close()
        raise
    set_agent(agent)  # others may call as soon as they find it
    try:
        agent.enter(_MEETING_SECONDS)
    except BaseException:
        set_agent(None)
        agent.close()
        raise


def rpc_sync(
    to: To,
    func: Function,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: Timeout = UNSET_RPC_TIMEOUT,
) -> Any:
    """Call a function on another worker, or this one, and return its result.

    Arrays must not be changed before the call is over. In a function that is itself called the
    caller's deadline applies, too.

    Args:
        to: The worker, by name, id or WorkerInfo.
        func: A function, which is pickled by reference, so both sides must be able to import it, or
            a name given to register().
        args: The function's arguments.
        kwargs: The function's arguments by name.
        timeout: Seconds or a timedelta, 0 for no limit; by default that of RpcBackendOptions.

    Returns:
        What the function returned.

    Raises:
        Exception: What the function raises, with a RemoteTraceback as the cause.
        RemoteError: If that exception cannot be rebuilt here.
        PeerLost: If the worker is gone.
        CallTimeout: If there is no answer in time.
        CallRefused: If there is no such worker or function, if arguments cannot be pickled, or if
            this process takes no part in calls.

    Example:
        ```python
        total = tr.rpc.rpc_sync("worker1", numpy.add, args=(array, 1), timeout=10)
        ```
    """
    return current_agent().call(to, func, args, kwargs, timeout)


def rpc_async(
    to: To,
    func: Function,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: Timeout = UNSET_RPC_TIMEOUT,
) -> Future:
    """Call a function without waiting, and return a Future of the result, which can be awaited.

    It blocks only while the connection is opened, or while too many bytes are in transit to the
    worker.

    Args:
        to: As rpc_sync().
        func: As rpc_sync().
        args: As rpc_sync().
        kwargs: As rpc_sync().
        timeout: As rpc_sync().

    Returns:
        The future, whose wait() raises what rpc_sync() raises.

    Raises:
        CallRefused: As rpc_sync().
        PeerLost: If the worker is gone.

    Example:
        ```python
        futures = [tr.rpc.rpc_async(worker, evaluate, (batch,)) for worker in workers]
        losses = tr.rpc.wait_all(futures)
        ```
    """
    return current_agent().invoke(to, func, args, kwargs, timeout)


def remote(
    to: To,
    func: Function,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: Timeout = UNSET_RPC_TIMEOUT,
) -> RRef:
    """Call a function, or create an object, on another worker, which keeps the result.

    That worker becomes the result's owner.

    Args:
        to: As rpc_sync().
        func: As rpc_sync(); a class creates an object.
        args: As rpc_sync().
        kwargs: As rpc_sync().
        timeout: As rpc_sync().

    Returns:
        A reference to the result. What the function raises is raised by its to_here().

    Raises:
        CallRefused: As rpc_sync().
        PeerLost: If the worker is gone.

    Example:
        ```python
        model = tr.rpc.remote("worker1", Model, (settings,))
        output = model.rpc_sync().forward(batch)
        ```
    """
    return created(current_agent(), to, func, args, kwargs, timeout)


def get_worker_info(worker_name: str | None = None) -> WorkerInfo:
    """Return the name and id of a worker.

    Args:
        worker_name: The worker's name; None is this worker.

    Raises:
        CallRefused: If there is no such worker, or without init_rpc().

    Example:
        ```python
        tr.rpc.get_worker_info().id
        ```
    """
    agent = current_agent()
    return agent.own.info if worker_name is None else agent.directory.find(worker_name).info


def get_worker_infos() -> list[WorkerInfo]:
    """Return all workers that there are now, ordered by id.

    Raises:
        CallRefused: Without init_rpc().

    Example:
        ```python
        names = [info.name for info in tr.rpc.get_worker_infos()]
        ```
    """
    return [worker.info for worker in current_agent().directory.all()]


def get_rpc_timeout() -> float:
    """Return the seconds that a call may take if it is given no timeout; 0 is no limit.

    Raises:
        CallRefused: Without init_rpc().

    Example:
        ```python
        tr.rpc.get_rpc_timeout()  # 60.0 by default
        ```
    """
    timeout = current_agent().options.rpc_timeout
    return timeout if timeout < float("inf") else 0.0


def is_initialized() -> bool:
    """Return whether this process takes part in calls.

    Example:
        ```python
        if tr.rpc.is_initialized():
            tr.rpc.shutdown()
        ```
    """
    return has_agent()


def is_available() -> bool:
    """Return True, as programs written for torch expect.

    Example:
        ```python
        tr.rpc.is_available()  # True
        ```
    """
    return True


def shutdown(graceful: bool = True, timeout: Timeout = 0) -> None:
    """Stop taking part in calls.

    Args:
        graceful: Whether to wait first until the calls of this worker are answered, and with a
            world size until all workers have come here, so that none loses an answer. Workers that
            die meanwhile are not waited for.
        timeout: Seconds or a timedelta for that, 0 for no limit.

    Raises:
        CallTimeout: If `timeout` has passed; it names what is left. This worker has left all the
            same.
        CallRefused: Without init_rpc(), or if a different thread is in shutdown() already.

    Example:
        ```python
        tr.rpc.shutdown(timeout=60)
        ```
    """
    agent = current_agent()
    if graceful and not agent.begin_to_leave():
        raise CallRefused("another thread of this worker is in shutdown() already")
    try:
        if graceful:
            leave(agent, seconds(timeout, math.inf))
    finally:
        set_agent(None)
        agent.close()
