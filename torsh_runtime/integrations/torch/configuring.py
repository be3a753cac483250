"""Lets a process group of torch be given other members in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch.distributed as dist
from torch._C import _distributed_c10d

from torsh_runtime.backends.base import Backend, MeetingStore
from torsh_runtime.backends.intercepting import seen
from torsh_runtime.backends.reconfiguration import (
    Attempt,
    AttemptStore,
    Reconfiguration,
    check_first,
    check_plan,
)
from torsh_runtime.errors import ConfigError, StoreError
from torsh_runtime.integrations.torch.store import TimedStore, until
from torsh_runtime.monitoring.calls import own_calls

c10d: Any = _distributed_c10d


class Configurable:
    """Represents a process group whose Backend can be replaced by another one."""

    def __init__(self, store: Any, backend: Backend, timeout: float) -> None:
        self._store = store
        self._put(backend)
        self._timeout = timeout
        self._collectives = self._splits = 0
        self._configuring = Reconfiguration()
        own_calls().add(self)

    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self._torsh.rank

    def size(self) -> int:
        """Return the number of ranks in the group."""
        return self._torsh.world_size

    # torch's C++, such as DDP's reducer, uses these names.
    getRank, getSize = rank, size  # noqa: N815

    def configure(
        self,
        store_addr: Any,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        group_rank: int | None = None,
        group_world_size: int | None = None,
        global_ranks: Sequence[int] | None = None,
        *,
        timeout: timedelta | None = None,
    ) -> None:
        """Give this group, alive or dead, other members, who all call this with the same quorum_id.

        DDP, meshes and other objects keep the group. Arguments are as in torchft.

        store_addr: a torch Store that all members can access, or "host:port/prefix" of a TCPStore
            that is served elsewhere; keys written under another prefix or quorum_id are not read.
        replica_id, group_rank, group_world_size: have no effect.
        rank, world_size: this process's rank and the number of ranks in the new group.
        quorum_id: a number that no attempt over this store has used; None if the prefix is unique.
        global_ranks: the members as ranks of the default group, for torch's functions that take
            these; None: they know only this rank, unless this is the default group.
        timeout: for connecting to the others; None: the group's.

        This rank's pending operations end with CommAborted, and those of others that need it with
        PeerLost. Sequence numbers start again at 0. Other groups are not changed.

        Raises CommTimeout naming the ranks that did not connect, CommAborted if a later configure()
        or an abort() ended this one, StoreError or PeerLost; the group then refuses all operations
        until it is configured again. Raises ConfigError for a quorum_id that was used before. Any
        thread may call it, also in a callback, but not a signal handler.
        """
        self._check_configurable()
        check_plan(rank, world_size)
        _check_members(global_ranks, world_size)
        limit = self._timeout if timeout is None else timeout.total_seconds()
        plan = Plan(store_addr, rank, world_size, quorum_id, global_ranks)
        self._change(lambda turn, left: _configured(plan, turn, left), limit, "configure")

    def _change(self, connect: Connect, limit: float, call: str) -> None:
        """Replace the backend by the one that `connect` makes."""
        self._configuring.change(
            lambda: self._own,
            self._put,
            self._count_anew,
            connect,
            lambda made: made.give(self),
            limit,
            call,
        )

    def _check_configurable(self) -> None:
        """Raise NotImplementedError if the group cannot be given other members."""

    def _count_anew(self) -> None:
        self._collectives = self._splits = 0

    @property
    def own_backend(self) -> Backend:
        """Return the backend itself, without what observes its calls."""
        return self._own

    @property
    def own_timeout(self) -> float:
        """Return the seconds that an operation may take if it does not say otherwise."""
        return self._timeout

    def take(self, backend: Backend) -> None:
        """Take the backend of another group from now on, which was configured."""
        if backend is not self._own:
            self._put(backend)
            self._count_anew()

    def _put(self, backend: Backend) -> None:
        self._own = backend
        self.show_calls()

    def show_calls(self) -> None:
        """Update the backend after the observers of this process's calls have changed."""
        self._torsh: Backend = seen(self._own)

    def abort(self) -> None:
        """End all ranks' pending and later operations with CommAborted.

        Any thread may call this. It also ends a configure() that is running in another thread.
        """
        self._configuring.give_up()
        self._torsh.abort()

    def subgroup(
        self, store: MeetingStore, name: str, ranks: Sequence[int], timeout: float
    ) -> Backend | None:
        """Return the backend of a subgroup, as Backend.subgroup() does."""
        return self._torsh.subgroup(store, f"{name} {ranks}", ranks, timeout)

    def shutdown(self) -> None:
        """Leave the group. A peer that still needs this rank gets PeerLost."""
        self._configuring.give_up()
        self._torsh.close()


class Plan(NamedTuple):
    """Describes the group that configure() is to create."""

    store: Any
    """A torch store, or the address of one."""
    rank: int
    world_size: int
    quorum_id: int | None
    global_ranks: Sequence[int] | None


class Configured(NamedTuple):
    """Holds the result of configure()."""

    backend: Backend
    store: Any
    plan: Plan

    def leave(self) -> None:
        """Do nothing: torch's stores end with the objects that hold them."""

    def give(self, group: Any) -> None:
        """Set the new backend and store in the group and in torch's tables of groups."""
        group._put(self.backend)
        group._store = self.store
        world = dist.distributed_c10d._world
        if group in world.pg_map:
            world.pg_map[group] = (world.pg_map[group][0], self.store)
            world.pg_group_ranks[group] = self._places(dist.group.WORLD in (None, group))

    def _places(self, is_default: bool) -> dict[int, int]:
        """Return the known members' places in the group, by their ranks in the default group."""
        if self.plan.global_ranks is not None:
            return {rank: place for place, rank in enumerate(self.plan.global_ranks)}
        if is_default:
            return {rank: rank for rank in range(self.plan.world_size)}
        return {dist.get_rank(): self.plan.rank}


Connect = Callable[[Attempt, float], Any]
"""A function that connects to the other members within so many seconds. What it returns has the
members of Configured.
"""


def _check_members(ranks: Sequence[int] | None, world_size: int) -> None:
    """Raise ConfigError if ranks are given that are not distinct, or not `world_size` in number."""
    if ranks is not None and (len(ranks) != world_size or len({*ranks}) != world_size):
        raise ConfigError(f"global_ranks is {ranks}; it must be {world_size} distinct ranks")


def _configured(plan: Plan, turn: Attempt, timeout: float) -> Configured:
    """Carry out configure(), and return its result."""
    deadline = time.monotonic() + timeout
    quorum = "" if plan.quorum_id is None else str(plan.quorum_id)
    given = c10d.PrefixStore(f"configure/{quorum}", _reached(plan.store, deadline))
    store = TimedStore(given, deadline)
    check_first(store.add(f"turn/{plan.rank}", 1), plan.rank, f"quorum_id {plan.quorum_id}")
    waiting = AttemptStore(store, turn)
    left = max(deadline - time.monotonic(), 0.001)
    name = f"configured/{quorum}"
    return Configured(meet(waiting, plan.rank, plan.world_size, left, name), given, plan)


def _reached(store: Any, deadline: float) -> Any:
    """Return the store, or connect to the one at the address. Raises StoreError at the deadline,
    of time.monotonic(), also if the process that serves it is stopped."""
    if not isinstance(store, str):
        return store
    address, _, prefix = store.partition("/")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"store_addr is {store!r}; it must be a Store, or host:port/prefix")
    connect = partial(
        c10d.TCPStore,
        host.strip("[]"),
        int(port),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=max(deadline - time.monotonic(), 0.001)),
    )
    try:
        served = until(connect, deadline)
    except RuntimeError as error:
        raise StoreError(f"no torch store answered at {address}: {error}") from None
    return c10d.PrefixStore(prefix, served)


def meet(
    store: MeetingStore,
    rank: int,
    world_size: int,
    seconds: float,
    name: str,
    subgroups: bool = True,
) -> Backend:
    """Return this rank's end of a new group, whose ranks connect through the store.

    subgroups: whether further groups are made of it.
    """
    if world_size == 1:
        from torsh_runtime.backends.single import SingleBackend

        return SingleBackend()
    from torsh_runtime.backends.native.backend import NativeBackend

    return NativeBackend.connect(store, rank, world_size, seconds, name, subgroups=subgroups)
