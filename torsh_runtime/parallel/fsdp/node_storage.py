"""Stores flat parameters that the ranks of each node have once, and gather from other nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self, cast
from weakref import WeakKeyDictionary

import numpy as np

from torsh_runtime.arrays.pages import give_back
from torsh_runtime.backends.base import Backend, ReduceOp
from torsh_runtime.backends.native.host_info import node_here
from torsh_runtime.backends.reconfiguration import Unmet
from torsh_runtime.comm.agreement import texts_of_all
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.subgroups import split_group
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.models import common_memory
from torsh_runtime.parallel.fsdp.flat_parameter import FlatParameter
from torsh_runtime.parallel.fsdp.fsdp_param import StorageStrategy, Stored
from torsh_runtime.parallel.fsdp.storage import (
    CommonStorage,
    GatheredStorage,
    forget_consecutive,
)
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.regions.arrays import copied


class Nodes:
    """Describes a group whose nodes have equally many ranks: `here` are this node's, and `likes`
    those with this one's place in their nodes, including this one."""

    def __init__(
        self, here: ProcessGroup, likes: ProcessGroup, members: Sequence[Sequence[int]]
    ) -> None:
        """Create the description. members: each node's ranks in the group."""
        self.here, self.likes, self.members = here, likes, members
        self._released: list[NodeStorage] = []

    def meet(self) -> None:
        """Wait for the ranks of this node. Then free what all have released, except for what a
        graph of one of them still needs in the present backward pass."""
        needed = self._needed()
        for memory in self._released:
            if memory not in needed:
                memory.let_go()
        self._released = needed

    def _needed(self) -> list[NodeStorage]:
        """Wait for the ranks of this node, and return the storages that any of them still needs."""
        early = [each for each in self._released if each.is_early]
        if not early:
            self.here.barrier()
            return []
        flags = np.array([each.is_held() for each in early], np.int32)
        self.here.all_reduce(flags, ReduceOp.MAX)
        return [each for each, flag in zip(early, flags, strict=True) if flag]

    def release(self, memory: NodeStorage) -> None:
        """Note that this rank no longer needs `memory`."""
        self._released.append(memory)

    def take_back(self, memory: NodeStorage) -> bool:
        """Take back memory that was released and is not freed yet. Return whether it was, which
        is equal on all ranks."""
        if memory not in self._released:
            return False
        self._released.remove(memory)
        return True


class NodeStorage(GatheredStorage):
    """The ranks of a node have the flat parameter once. Each gathers an equal share of it from its
    likes in other nodes, so what a node needs comes to it once; and gradients leave a node averaged
    over its ranks.
    """

    is_common = True

    def __init__(self, stored: Stored, nodes: Nodes) -> None:
        self._nodes = nodes
        super().__init__(stored)
        self._shares = [self._parts[members[nodes.here.rank]] for members in nodes.members]
        self._is_published = True
        self.is_early = False
        """Whether it was released in a backward pass that goes on."""
        nodes.meet()

    def remade(self, flat: FlatParameter) -> Self:
        return type(self)(self._described(flat), self._nodes)

    def publish(self) -> None:
        self._is_published = True

    def settle(self) -> None:
        self._is_published = True  # an optimizer comes now

    def begin_unshard(self) -> None:
        if self._nodes.take_back(self) and not self._is_published:  # it has not changed since
            self._count(self._whole_size, self._precision.computed)
            self._is_here = True
        super().begin_unshard()

    def unshard(self) -> None:
        is_new = not self._is_here
        super().unshard()
        if is_new:
            self._nodes.meet()

    def reshard(self) -> None:
        self.is_early = False
        super().reshard()

    def reshard_early(self) -> None:
        if self._is_here:
            super().reshard()
            self.is_early = True

    def reshard_to(self, ranks: int) -> None:
        """Keep it, of which each rank of the node has an equal part, if that is not too much."""
        if ranks > self._nodes.here.world_size:
            self.reshard()

    def met(self) -> None:
        if self._nodes.take_back(self):
            self.let_go()

    def let_go(self) -> None:
        """Give the memory of what this rank has gathered to the system, and nobody else's: they may
        have begun to gather again."""
        for share in self._shares:
            with suppress(OSError):  # locked in memory
                give_back(self._framework.array(share))

    @property
    def _whole_size(self) -> int:
        return self._flat.size // self._nodes.here.world_size

    def _make_whole(self) -> Any:
        like, dtype = self._flat.parameters[0], self._precision.computed
        return common_memory(like, self._flat.size, self._nodes.here, dtype)

    def _allocate(self) -> None:
        """Allocate nothing, because writing to the memory does."""

    def _release(self) -> None:
        self._nodes.release(self)

    def _gather(self, own: Any) -> Any:
        self._is_published = False
        return self._nodes.likes.all_gather(self._shares, own, async_op=True)

    def _reduce(self, target: Any, staged: Any) -> Any:
        nodes, own, parts = self._nodes, self._nodes.here.rank, self._flat.parts(staged)
        averages = []
        for members in nodes.members:
            average = copied(parts[members[own]])
            nodes.here.reduce_scatter(average, [parts[rank] for rank in members], ReduceOp.AVG)
            averages.append(average)
        return nodes.likes.reduce_scatter(target, averages, ReduceOp.AVG, async_op=True)


def host_storage(stored: Stored, over: ProcessGroup, nodes: Nodes | None) -> StorageStrategy:
    """Make a storage in the memory of CPUs, the best one for where the ranks are. All ranks call
    it.

    over: the ranks that the model is sharded over. nodes: theirs, as nodes_of() finds them.
    """
    flat, group = stored.flat, stored.group
    is_met = not group.is_unmet  # or it gets memory when it has joined the others
    if is_met and (group is over or over.is_in_node):  # for all meet, or none
        whole = common_memory(flat.parameters[0], flat.size, group, flat.precision.computed)
        if whole is not None:
            return CommonStorage(stored, whole)
    if nodes is not None and group is over:
        return NodeStorage(stored, nodes)
    return GatheredStorage(stored)


_NODES: WeakKeyDictionary[ProcessGroup, Nodes | None] = WeakKeyDictionary()


def nodes_of(group: ProcessGroup) -> Nodes | None:
    """Return the group's nodes if there are several with equally many ranks each, and more than
    one; else None, on all ranks. Models of the same ranks share them, and their groups."""
    if group not in _NODES:
        _NODES[group] = _found_nodes(group)
    return _NODES[group]


def renewed_nodes_of(group: ProcessGroup) -> Nodes | None:
    """Return the nodes of a group that was configured anew, with groups of their own made anew."""
    _NODES.pop(group, None)
    forget_consecutive(group)
    return nodes_of(group)


def groups_by_node(group: ProcessGroup) -> list[ProcessGroup]:
    """Return the groups that by_node() has made of this one, in the same order on all ranks."""
    return [each for pair in _BY_NODE.get(group, ()) for each in pair]


def groups_of_nodes(group: ProcessGroup) -> list[ProcessGroup]:
    """Return all groups that were made of this one for models that are sharded."""
    nodes = _NODES.get(group)
    return [*groups_by_node(group), *([nodes.here, nodes.likes] if nodes else [])]


def is_by_agents(group: ProcessGroup, here: ProcessGroup) -> bool:
    """Return whether by_node() has made `here`, and of the ranks that one agent has."""
    made = [each for each, _ in _BY_NODE.get(group, ())]
    members = _members_by_agents(group)
    return here in made and list(here.ranks) == members[group.rank // len(members[0])]


def _found_nodes(group: ProcessGroup) -> Nodes | None:
    if group.is_in_node or group.world_size == 1:
        return None
    members = _members(group)
    sizes = {len(each) for each in members}
    if len(members) < 2 or len(sizes) > 1 or sizes == {1}:
        return None
    here, likes = _split(group, members)
    return Nodes(here, likes, members) if here.is_in_node else None


_BY_NODE: WeakKeyDictionary[ProcessGroup, list[tuple[ProcessGroup, ProcessGroup]]] = (
    WeakKeyDictionary()
)
"""Groups that by_node() has made, by the group that they were made of."""


def by_node(group: ProcessGroup) -> tuple[ProcessGroup, ProcessGroup]:
    """Return the ranks of this node, and those that have this one's place in each node. A rank that
    has not met the others gets groups that are connected when it joins them."""
    made = _unmet_by_node(group) if group.is_unmet else _made_by_node(group)
    _BY_NODE.setdefault(group, []).append(made)
    return made


def _unmet_by_node(group: ProcessGroup) -> tuple[ProcessGroup, ProcessGroup]:
    members, rank = _members_by_agents(group), group.rank
    node, place = divmod(rank, len(members[0]))
    likes = [each[place] for each in members]

    def unmet(ranks: list[int], at: int) -> ProcessGroup:
        backend = cast(Backend, Unmet(at, len(ranks)))
        return ProcessGroup(backend, group.timeout, ranks, group.name, group.session)

    return unmet(members[node], place), unmet(likes, node)


def _members_by_agents(group: ProcessGroup) -> list[list[int]]:
    """Return the ranks of each agent, if all have as many as this one."""
    size = int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or group.world_size
    ranks = [*range(group.world_size)]
    return [ranks[at : at + size] for at in range(0, len(ranks), size)]


def _made_by_node(group: ProcessGroup) -> tuple[ProcessGroup, ProcessGroup]:
    members = _members(group)
    if len({len(each) for each in members}) > 1:
        raise ConfigError(
            f"sharding_strategy 'hybrid' shards in each node, and nodes have unequal numbers of "
            f"ranks, {', '.join(str(len(each)) for each in members)}: pass process_group"
        )
    return _split(group, members)


def _members(group: ProcessGroup) -> list[list[int]]:
    """Return the ranks of each node."""
    nodes: dict[str, list[int]] = {}
    for rank, node in enumerate(texts_of_all(group, repr(node_here()))):
        nodes.setdefault(node, []).append(rank)
    return [*nodes.values()]


def _split(group: ProcessGroup, members: list[list[int]]) -> tuple[ProcessGroup, ProcessGroup]:
    """Return the group of this rank's node, and that of the ranks with its place in each node."""
    likes = [list(each) for each in zip(*members, strict=True)]
    here, like = (split_group(group, parts) for parts in (members, likes))
    return group_of(here), group_of(like)
