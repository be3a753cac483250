"""init_rpc(), shutdown() and the calls between them: torch.distributed.rpc's functions."""

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
    """Take part in remote calls: from now on others can call functions in this process, and this
    process can call theirs. It needs no process group, and does not disturb one.

    name: of this worker; no other has it. rank: its id; -1 is what torshrun, torchrun, mpiexec,
    srun or RANK says. world_size: how many workers there are; the call returns when all have come.
    None: workers come and go; without torshrun one of them has rank 0, serves the store and must
    stay, and one that is given no rank gets an id that is free. backend: makes no difference.

    Raises ConfigError for bad arguments, CommTimeout naming ranks that did not come, StoreError.
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

    func: pickled by reference, so both sides must be able to import it, or a name given to
    register(). timeout: seconds, 0 for as long as it takes; in a function that is itself called the
    caller's deadline holds, too. Arrays must not be changed before the call is over.

    Raises what the function raises, with a RemoteTraceback as the cause (RemoteError if that cannot
    be rebuilt here), PeerLost when the worker has gone, CallTimeout, and CallRefused.
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
    Apart from that it is rpc_sync(). It blocks only while the connection is opened, or while too
    many bytes are under way to the worker."""
    return current_agent().invoke(to, func, args, kwargs, timeout)


def remote(
    to: To,
    func: Function,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: Timeout = UNSET_RPC_TIMEOUT,
) -> RRef:
    """Call a function (or make an object, with a class) on another worker, which keeps the result
    and becomes its owner. Return a reference to it. What the function raises is raised by
    to_here()."""
    return created(current_agent(), to, func, args, kwargs, timeout)


def get_worker_info(worker_name: str | None = None) -> WorkerInfo:
    """Return the name and id of a worker, or of this one without a name. Raises CallRefused if
    there is no such worker."""
    agent = current_agent()
    return agent.own.info if worker_name is None else agent.directory.find(worker_name).info


def get_worker_infos() -> list[WorkerInfo]:
    """Return all workers that there are now, ordered by id."""
    return [worker.info for worker in current_agent().directory.all()]


def get_rpc_timeout() -> float:
    """Return the seconds that a call may take if it is given no timeout. 0 means no limit."""
    timeout = current_agent().options.rpc_timeout
    return timeout if timeout < float("inf") else 0.0


def is_initialized() -> bool:
    """Return whether this process takes part in calls."""
    return has_agent()


def is_available() -> bool:
    """Return True, as programs written for torch expect."""
    return True


def shutdown(graceful: bool = True, timeout: Timeout = 0) -> None:
    """Take no part in calls any more.

    graceful: first wait until the calls of this worker are answered, and with a world size until
    all workers have come here, so that none loses an answer. Workers that die meanwhile are not
    waited for. timeout: seconds for that, 0 for as long as it takes; what is left then is named by
    a CallTimeout, and this worker has left all the same. CallRefused without init_rpc().
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
