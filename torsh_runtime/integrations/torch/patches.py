"""Replaces functions of torch, which happens only here. They work as before for other backends.

torch asks for gloo by name before it passes these calls on to a group that could do them.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

c10d: Any = dist.distributed_c10d


def install() -> None:
    """Make torch.distributed's functions support groups of the backend "torsh"."""
    for name, ours in (
        ("monitored_barrier", _monitored_barrier),
        ("_set_pg_timeout", _set_pg_timeout),
    ):
        if theirs := getattr(c10d, name, None):
            replace(name, _for_ours(theirs, ours))
    _need_no_rank_0()


def _need_no_rank_0() -> None:
    """Let workers that replace lost ones make the default group without rank 0's store.

    Rank 0 may have been lost as well, and the others have no need for its store any more.
    """
    module = sys.modules["torch.distributed.rendezvous"]  # dist.rendezvous is its function
    handlers = getattr(module, "_rendezvous_handlers", {})
    for scheme in {"env", "tcp"} & handlers.keys():
        handlers[scheme] = _unless_replacing(handlers[scheme])


def _unless_replacing(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def meet(*given: Any, **named: Any) -> Any:
        """Call torch's own, or give a replacement a store of its own."""
        from torsh_runtime.contract import REPLACEMENT  # what torch loads by itself stays small

        if os.environ.get(REPLACEMENT) != "1":
            return theirs(*given, **named)
        os.environ.pop("TORCH_DIST_INIT_BARRIER", None)  # the others have passed it
        rank, world_size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
        from torsh_runtime.integrations.torch.store import unshared_store

        return iter([(unshared_store(), rank, world_size)])

    return meet


def replace(name: str, function: Callable[..., Any]) -> None:
    """Replace torch.distributed's function of this name in all of torch's own modules."""
    for module in (c10d, dist):
        if hasattr(module, name):
            setattr(module, name, function)


def _for_ours(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `ours` for groups of the backend "torsh", else `theirs`."""

    @functools.wraps(theirs)
    def call(*given: Any, **named: Any) -> Any:
        """Call torch.distributed's own, or ours for a torsh group."""
        arguments = _ARGUMENTS[theirs.__name__]
        asked = dict(zip(arguments, given, strict=False)) | named
        group = asked.pop("group", None) or dist.group.WORLD
        if not hasattr(group, "is_torsh") or not asked.keys() <= set(arguments):
            return theirs(*given, **named)
        return ours(group, **asked)

    return call


_ARGUMENTS = {
    "monitored_barrier": ("group", "timeout", "wait_all_ranks"),
    "_set_pg_timeout": ("timeout", "group"),
}


def _monitored_barrier(
    group: Any, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    limit = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
    group.monitored_barrier(limit, wait_all_ranks)


def _set_pg_timeout(group: Any, timeout: timedelta) -> None:
    group.set_timeout(timeout)


def put_in_gloos_stead() -> None:
    """Make torch create groups that ask for gloo on CPUs as `stand_in` describes.

    They keep the requested names, as libraries compare these.
    """
    dist.Backend.register_backend(_STAND_IN, _make, extended_api=True, devices=["cpu"])
    theirs = c10d._new_process_group_helper

    @functools.wraps(theirs)
    def helper(size: int, rank: int, ranks: Any, backend: str, *given: Any, **named: Any) -> Any:
        """Do what torch's own function does, with torsh in place of gloo for CPUs."""
        devices = c10d.BackendConfig(backend).get_device_backend_map()
        if devices.get("cpu") != "gloo":
            return theirs(size, rank, ranks, backend, *given, **named)
        others = [f"{device}:{name}" for device, name in devices.items() if name != "gloo"]
        if others and named.get("enable_reconfigure"):
            from torsh_runtime.errors import ConfigError

            raise ConfigError(_SEVERAL)
        made, store = theirs(size, rank, ranks, ",".join(others) or _STAND_IN, *given, **named)
        if store is None:
            return made, store  # this rank is not in the group
        group = _with_cpus(made, store, ranks, named) if others else made
        world = c10d._world
        world.pg_map[group] = (c10d.Backend(backend), store)
        world.pg_backend_config[group] = str(c10d.BackendConfig(backend))
        return group, store

    replace("_new_process_group_helper", helper)


_SEVERAL = (
    "enable_reconfigure=True is for groups with one backend, as torch's own functions are: ask for "
    "'gloo' or 'torsh', and make another group for the tensors on accelerators"
)
_STAND_IN = "torsh_as_gloo"
"""The name in torch's list of backends that creates such groups. No group reports it."""


def _make(given: Any, options: object) -> Any:
    from torsh_runtime.integrations.torch.stand_in import make

    return make(given, options)


def _with_cpus(made: Any, store: Any, ranks: Sequence[int], named: Mapping[str, Any]) -> Any:
    """Make a group that also has CPUs, in place of the one that torch made for accelerators.

    It has the same ranks, and `named` are the arguments with which torch made the other one.
    """
    given = c10d._DistributedBackendOptions()
    given.store, given.timeout = c10d.PrefixStore("cpu/", store), named["timeout"]
    given.group_rank, given.group_size = made.rank(), made.size()
    given.group_id, given.global_ranks_in_group = made.group_name, ranks
    group = _make(given, None)
    group.accelerated, group.bound_device_id = made, made.bound_device_id
    group.setGroupName(made.group_name)
    group.setGroupDesc(made.group_desc)
    _take_the_place(made, group)
    return group


def _take_the_place(old: Any, new: Any) -> None:
    """Replace the old group by the new one in all of torch's tables."""
    world = c10d._world
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag):
        table[new] = table.pop(old)
    for groups in world.tags_to_pg.values():
        groups[:] = [new if group is old else group for group in groups]
    c10d._unregister_process_group(old.group_name)
    c10d._register_process_group(new.group_name, new)
