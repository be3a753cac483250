"""Creates process groups from the options that torch.distributed passes to a backend."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.reconfiguration import Unmet
from torsh_runtime.backends.single import SingleBackend
from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.torch import functional, protection, replicas
from torsh_runtime.integrations.torch.accelerate import check_accelerate
from torsh_runtime.integrations.torch.allocator import tune_allocator
from torsh_runtime.integrations.torch.configuring import meet
from torsh_runtime.integrations.torch.group import TorshProcessGroup
from torsh_runtime.integrations.torch.marking import mark_optimizers
from torsh_runtime.integrations.torch.reconfiguring import unconnected
from torsh_runtime.integrations.torch.store import FreshKeys
from torsh_runtime.monitoring.notes import DEFAULT
from torsh_runtime.status import own_page

c10d: Any = _distributed_c10d
Group = TypeVar("Group", bound=TorshProcessGroup)


def create(
    given: Any,
    options: object,
    kind: type[Group] = TorshProcessGroup,
    parent: TorshProcessGroup | None = None,
) -> Group:
    """Create the process group that torch describes (its _DistributedBackendOptions).

    parent: the group that contains the ranks of global_ranks_in_group; None: the default group.

    Raises CommTimeout naming the ranks that did not connect within the group's timeout, StoreError
    if torch's store fails, BackendUnavailable, TypeError for backend options, and ConfigError where
    check_accelerate() does. With enable_reconfigure, which torch has from 2.14 on, no rank connects
    before reconfigure() is called.
    """
    if not given.global_ranks_in_group:  # the default group
        check_accelerate(given.group_size)
    if options is not None:
        raise TypeError(
            f"the torsh backend takes no pg_options, but was given {type(options).__name__}"
        )
    seconds = given.timeout.total_seconds()
    tune_allocator()
    mark_optimizers()
    functional.install()
    env = _environment()
    if not given.global_ranks_in_group and env is not None and replicas.can_be_lost(env):
        replicas.watch()
    backend = _connect(given, seconds, _default() if parent is None else parent, env)
    page = own_page()
    if page is not None:
        page.note_initialised()
    if not given.global_ranks_in_group:
        backend.note_title(DEFAULT)
    overlaps = env is not None and env.num_nodes > 1  # it may wait for the network
    group = kind(given.store, backend, seconds, overlap_backward=overlaps)
    if protection.protector is not None and env is not None and not given.global_ranks_in_group:
        protection.protector.protect(group, env)
    return group


def split(
    parent: TorshProcessGroup, ranks: Sequence[int], timeout: timedelta, name: str, desc: str
) -> TorshProcessGroup | None:
    """Carry out TorshProcessGroup.split_group()."""
    if len({*ranks}) != len(ranks) or not ranks or not {*ranks} <= {*range(parent.size())}:
        raise ValueError(f"{ranks} are not distinct ranks of a group of {parent.size()}")
    if parent.rank() not in ranks:
        return None
    given = c10d._DistributedBackendOptions()
    given.store = c10d.PrefixStore(f"{name}/", parent.get_group_store())
    given.group_rank, given.group_size = ranks.index(parent.rank()), len(ranks)
    given.timeout, given.group_id = timeout, name
    given.global_ranks_in_group = list(ranks)
    group = create(given, None, type(parent), parent)
    group.setGroupName(name)
    group.setGroupDesc(desc)
    return group


def _environment() -> WorkerEnv | None:
    """Return this process's place in its job, or None if the environment does not tell."""
    try:
        return WorkerEnv.from_environ(os.environ)
    except ConfigError:
        return None


def _default() -> object:
    """Return the default group's part for CPUs, or None without one."""
    world = dist.group.WORLD
    if world is None or isinstance(world, TorshProcessGroup):
        return world
    with suppress(RuntimeError):  # it has no backend for CPUs
        return world._get_backend(torch.device("cpu"))
    return None


def _check_alone(parent: object) -> None:
    """Raise ConfigError if the group would end with the loss of a worker that join() survives."""
    if isinstance(parent, TorshProcessGroup) and (parent.is_alone or replicas.is_unmet(parent)):
        raise ConfigError(
            "tr.elastic.join() recovers the default group of torch.distributed alone, and this "
            "group would end with the loss of a worker: make no groups, or use tr.elastic.State, "
            "which restarts all workers after a loss"
        )


def _connect(given: Any, seconds: float, parent: object, env: WorkerEnv | None) -> Backend:
    if given.global_ranks_in_group:
        _check_alone(parent)
        if protection.protector is not None:
            protection.protector.give_up("it makes groups beside the default one")
    elif env is not None and env.is_replacement:  # the others are past this: see elastic.join()
        return cast(Backend, Unmet(given.group_rank, given.group_size))
    if getattr(given, "enable_reconfigure", False):
        made: Backend = unconnected(given.group_rank, given.group_size)
        return made
    if given.group_size == 1:
        return SingleBackend()
    deadline = time.monotonic() + seconds
    store = FreshKeys(given.store, given.group_rank)
    ranks = list(given.global_ranks_in_group)
    try:
        if ranks and isinstance(parent, TorshProcessGroup):
            shared = parent.subgroup(store, given.group_id, ranks, seconds)
            if shared is not None:
                return shared
        left = max(deadline - time.monotonic(), 0.001)
        return meet(store, given.group_rank, given.group_size, left, given.group_id, not ranks)
    except BaseException:
        store.count()  # counts this attempt, even if this rank has written nothing
        raise
