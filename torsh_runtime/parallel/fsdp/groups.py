"""Over whose ranks a model is sharded, and who replicate the same part."""

from __future__ import annotations

from typing import Any

from torsh_runtime.backends.native.host_info import node_here
from torsh_runtime.comm.agreement import texts_of_all
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.subgroups import split_group
from torsh_runtime.errors import ConfigError
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.fsdp.config import ShardingStrategy
from torsh_runtime.parallel.fsdp.node_storage import Nodes
from torsh_runtime.parallel.groups import group_of


def groups_of(given: Any, strategy: object) -> tuple[Any, Any]:
    """Return the ranks to shard over, and the replicas or None if the strategy has none: groups,
    or parts of a mesh. Raises ConfigError if `given` has no such groups."""
    if strategy is not ShardingStrategy.HYBRID_SHARD:
        return given, None
    if isinstance(given, DeviceMesh) and len(given.mesh_dim_names) == 2:
        replicas, shards = given.mesh_dim_names
        return given[shards], given[replicas]
    if isinstance(given, tuple | list) and len(given) == 2:
        return given[0], given[1]
    if given is None:
        return _by_node(group_of(None))
    raise ConfigError(
        "sharding_strategy 'hybrid' takes process_group=(those to shard over, those with the same "
        "part), or a DeviceMesh of two axes, replicas first; None shards in each node"
    )


def nodes_of(group: ProcessGroup) -> Nodes | None:
    """Return the group's nodes if there are several with equally many ranks each, and more than
    one; else None, on all ranks."""
    if group.is_in_node or group.world_size == 1:
        return None
    members = _members(group)
    sizes = {len(each) for each in members}
    if len(members) < 2 or len(sizes) > 1 or sizes == {1}:
        return None
    here, likes = _split(group, members)
    return Nodes(here, likes, members) if here.is_in_node else None


def _by_node(group: ProcessGroup) -> tuple[ProcessGroup, ProcessGroup]:
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
