"""Creates several groups at once out of one, as in torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence

from torsh_runtime.backends.base import BackendType
from torsh_runtime.comm.choosing import backend_type, check_no_options
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.groups import new_group
from torsh_runtime.comm.timeouts import Timeout, seconds
from torsh_runtime.errors import ConfigError


def new_subgroups(
    group_size: int | None = None,
    group: ProcessGroup | None = None,
    timeout: Timeout = None,
    backend: str | BackendType | None = None,
    pg_options: None = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | None, list[ProcessGroup]]:
    """Create groups of `group_size` consecutive ranks of `group` each.

    All ranks call it with the same arguments.

    Args:
        group_size: The number of ranks in each group; None is the ranks of a node.
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta for each operation; None is the default group's timeout.
        backend: As in init_process_group; None is the default group's.
        pg_options: Must be None.
        group_desc: The name by which torshctl calls the groups.

    Returns:
        This process's group, or None if it is in none, and all groups; in the others it has rank
            -1.

    Raises:
        ConfigError: If the ranks do not divide into such groups, and as in new_group.
        BackendUnavailable: As in new_group.
        CommTimeout: If members did not come; it names their ranks.

    Example:
        ```python
        own, groups = tr.new_subgroups(2)  # ranks 0 and 1, 2 and 3, ...
        tr.all_reduce(gradient, group=own)
        ```
    """
    ranks = list((group or default_group()).ranks)
    size = default_group().session.local_world_size if group_size is None else group_size
    if size < 1 or len(ranks) % size:
        raise ConfigError(
            f"{len(ranks)} ranks do not divide into groups of {size}: give a group_size that "
            f"divides them, or the ranks to new_subgroups_by_enumeration()"
        )
    parts = [ranks[begin : begin + size] for begin in range(0, len(ranks), size)]
    return new_subgroups_by_enumeration(parts, timeout, backend, pg_options, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: Timeout = None,
    backend: str | BackendType | None = None,
    pg_options: None = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | None, list[ProcessGroup]]:
    """Create groups of these ranks of the default group.

    All ranks call it with the same arguments.

    Args:
        ranks_per_subgroup_list: The ranks of each group. None may be in two.
        timeout: Seconds or a timedelta for each operation; None is the default group's timeout.
        backend: As in init_process_group; None is the default group's.
        pg_options: Must be None.
        group_desc: The name by which torshctl calls the groups.

    Returns:
        This process's group, or None if it is in none, and all groups; in the others it has rank
            -1.

    Raises:
        ConfigError: If a list is empty or a rank is in two, and as in new_group.
        BackendUnavailable: As in new_group.
        CommTimeout: If members did not come; it names their ranks.

    Example:
        ```python
        own, groups = tr.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        ```
    """
    _check_apart("ranks_per_subgroup_list", ranks_per_subgroup_list)
    groups = [
        new_group(ranks, timeout, backend, pg_options, group_desc=group_desc)
        for ranks in ranks_per_subgroup_list
    ]
    return next((group for group in groups if group.rank >= 0), None), groups


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: Timeout = None,
    pg_options: None = None,
    group_desc: str | None = None,
    backend: str | BackendType | None = None,
) -> ProcessGroup | None:
    """Create groups of these ranks of `parent_pg`, and return this process's.

    Only the members of a group connect to each other.

    Args:
        parent_pg: The group to split; None is the default group.
        split_ranks: The ranks of each new group, as those of `parent_pg`, in the new order.
        timeout: Seconds or a timedelta for each operation; None is the parent's timeout.
        pg_options: Must be None.
        group_desc: Makes no difference.
        backend: As in init_process_group; None is the parent's.

    Returns:
        This process's group, or None if it is in none of them.

    Raises:
        ConfigError: For ranks that make no groups, and as in new_group.
        BackendUnavailable: As in new_group.
        ValueError: If the parent has no such rank.
        CommTimeout: If members did not come; it names their ranks.

    Example:
        ```python
        half = tr.split_group(split_ranks=[[0, 1], [2, 3]])
        ```
    """
    check_no_options(pg_options)
    parent = parent_pg or default_group()
    _check_apart("split_ranks", split_ranks)
    own = next((list(part) for part in split_ranks or () if parent.rank in part), None)
    if own is None:
        return None
    kind = backend_type(parent.backend if backend is None else backend)
    members = [parent.global_rank(rank) for rank in own]
    return parent.session.group(parent.name, members, kind, seconds(timeout, parent.timeout))


def _check_apart(name: str, parts: Sequence[Sequence[int]] | None) -> None:
    ranks = [rank for part in parts or () for rank in part]
    if not parts or not all(parts) or len(set(ranks)) != len(ranks):
        raise ConfigError(
            f"{name} is {parts!r}; it must be lists of ranks, none of them empty and no rank in two"
        )
