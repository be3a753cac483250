"""The one place in which functions of torch are replaced, by ones that do the same for all others.

torch asks for gloo by name before it hands these on to a group, which could do them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

c10d: Any = dist.distributed_c10d


def install() -> None:
    """Have torch.distributed's functions know groups of the backend "torsh"."""
    for name, ours in (
        ("monitored_barrier", _monitored_barrier),
        ("_set_pg_timeout", _set_pg_timeout),
    ):
        if theirs := getattr(c10d, name, None):
            replace(name, _for_ours(theirs, ours))


def replace(name: str, function: Callable[..., Any]) -> None:
    """Put a function in the place of torch.distributed's own, wherever torch itself has it."""
    for module in (c10d, dist):
        if hasattr(module, name):
            setattr(module, name, function)


def _for_ours(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """`theirs`, but for groups of the backend "torsh"."""

    @functools.wraps(theirs)
    def call(*given: Any, **named: Any) -> Any:
        """As torch.distributed's own."""
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
    """Have torch make groups that ask for gloo on CPUs as `stand_in` says. They go by the names
    that were asked for: libraries compare them.
    """
    dist.Backend.register_backend(_STAND_IN, _make, extended_api=True, devices=["cpu"])
    theirs = c10d._new_process_group_helper

    @functools.wraps(theirs)
    def helper(size: int, rank: int, ranks: Any, backend: str, *given: Any, **named: Any) -> Any:
        """As torch's own."""
        devices = c10d.BackendConfig(backend).get_device_backend_map()
        if devices.get("cpu") != "gloo":
            return theirs(size, rank, ranks, backend, *given, **named)
        others = [f"{device}:{name}" for device, name in devices.items() if name != "gloo"]
        made, store = theirs(size, rank, ranks, ",".join(others) or _STAND_IN, *given, **named)
        if store is None:
            return made, store  # for this rank is not in the group
        group = _with_cpus(made, store, ranks, named) if others else made
        world = c10d._world
        world.pg_map[group] = (c10d.Backend(backend), store)
        world.pg_backend_config[group] = str(c10d.BackendConfig(backend))
        return group, store

    replace("_new_process_group_helper", helper)


_STAND_IN = "torsh_as_gloo"
"""What such groups are made by, in torch's list of backends; no group says that it is its name."""


def _make(given: Any, options: object) -> Any:
    from torsh_runtime.integrations.torch.stand_in import make

    return make(given, options)


def _with_cpus(made: Any, store: Any, ranks: Sequence[int], named: Mapping[str, Any]) -> Any:
    """A group for CPUs too, of the ranks of one that torch has just made for accelerators by these
    arguments, whose place it takes."""
    given = c10d._DistributedBackendOptions()
    given.store, given.timeout = c10d.PrefixStore("cpu/", store), named["timeout"]
    if named.get("enable_reconfigure"):
        given.enable_reconfigure = True
    given.group_rank, given.group_size = made.rank(), made.size()
    given.group_id, given.global_ranks_in_group = made.group_name, ranks
    group = _make(given, None)
    group.accelerated, group.bound_device_id = made, made.bound_device_id
    group.setGroupName(made.group_name)
    group.setGroupDesc(made.group_desc)
    _take_the_place(made, group)
    return group


def _take_the_place(old: Any, new: Any) -> None:
    """Have torch know the new group wherever it knows the old one."""
    world = c10d._world
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag):
        table[new] = table.pop(old)
    for groups in world.tags_to_pg.values():
        groups[:] = [new if group is old else group for group in groups]
    c10d._unregister_process_group(old.group_name)
    c10d._register_process_group(new.group_name, new)
