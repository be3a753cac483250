"""Provides the names of ray.util.collective for groups of actors with torsh's backend.

    import torsh_runtime.integrations.ray.collective as collective

replaces `import ray.util.collective as collective`, and nothing else changes in the program.
Importing it registers "torsh" as a backend of ray.util.collective in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import ray.util.collective as given

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.ray.actors import TorshGroup

__all__ = [
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "create_collective_group",
    "destroy_collective_group",
    "get_collective_group_size",
    "get_group_handle",
    "get_rank",
    "gloo_available",
    "init_collective_group",
    "is_backend_available",
    "is_group_initialized",
    "nccl_available",
    "process_group",
    "recv",
    "reduce",
    "reducescatter",
    "send",
]
P = ParamSpec("P")
R = TypeVar("R")
NAME = "TORSH"
_OURS = ("torsh", "gloo", "torch_gloo")
"""Backend names that select torsh: its own, and those of Ray's that it replaces."""


def _from_here(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap the function so that an actor that receives it loads this module."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    call.__module__ = __name__
    return call


allgather = _from_here(given.allgather)
allreduce = _from_here(given.allreduce)
barrier = _from_here(given.barrier)
broadcast = _from_here(given.broadcast)
destroy_collective_group = _from_here(given.destroy_collective_group)
get_collective_group_size = _from_here(given.get_collective_group_size)
get_group_handle = _from_here(given.get_group_handle)
get_rank = _from_here(given.get_rank)
gloo_available = _from_here(given.gloo_available)
is_backend_available = _from_here(given.is_backend_available)
is_group_initialized = _from_here(given.is_group_initialized)
nccl_available = _from_here(given.nccl_available)
recv = _from_here(given.recv)
reduce = _from_here(given.reduce)
reducescatter = _from_here(given.reducescatter)
send = _from_here(given.send)


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"{__name__} has no {name}"
        + (f": import ray.util.collective for {name}" if hasattr(given, name) else "")
    )


def init_collective_group(
    world_size: int,
    rank: int,
    backend: str = "torsh",
    group_name: str = "default",
    gloo_timeout: int = 30000,
) -> None:
    """Make this actor a rank of a group. The other ranks call this, too.

    backend: "torsh", or "gloo", which it replaces. gloo_timeout: has no effect.

    Raises ConfigError for other backends and for an invalid rank; CommTimeout naming the ranks that
    did not connect within a minute.
    """
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} is none of {world_size} ranks, from 0")
    given.init_collective_group(world_size, rank, _taken(backend), group_name)


def create_collective_group(
    actors: Sequence[Any],
    world_size: int,
    ranks: Sequence[int],
    backend: str = "torsh",
    group_name: str = "default",
    gloo_timeout: int = 30000,
) -> None:
    """Declare, in a driver, that these actors are a group. They connect in their first operation.

    backend, gloo_timeout: as for init_collective_group().
    """
    given.create_collective_group(
        list(actors), world_size, list(ranks), _taken(backend), group_name
    )


def process_group(group_name: str = "default") -> ProcessGroup:
    """Return this actor's group of that name as a ProcessGroup with all of its operations.

    Raises ConfigError for a group of another backend.
    """
    handle = given.collective.get_group_handle(group_name)
    if not isinstance(handle, TorshGroup):
        raise ConfigError(f"the group {group_name!r} is of Ray's backend {handle.backend()}")
    return handle.process_group


def _taken(backend: str) -> str:
    if backend.lower() not in _OURS:
        raise ConfigError(
            f"backend is {backend!r}; this module has 'torsh', and takes 'gloo' for it. For others "
            f"import ray.util.collective"
        )
    return NAME


if not given.backend_registry._global_registry.is_registered(NAME):
    given.backend_registry.register_collective_backend(NAME, TorshGroup)
