"""Several groups at once, out of one, as in torch.distributed."""

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
    """Groups of `group_size` ranks each, in order of their ranks in `group`; None: of a node's.

    This process's, and all of them, of which it is no member of the others. ConfigError unless
    the group divides into such. Otherwise as new_group.
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
    """Groups of these ranks of the default group, of which none may be in two.

    This process's, or None, and all of them. Otherwise as new_group.
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
    """This process's of the groups of these ranks of `parent_pg`, its own ranks, in their order;
    None if it is in none of them.

    Only the members meet. timeout and backend: None is the parent's. pg_options must be None;
    group_desc makes no difference. Raises ConfigError for ranks that make no groups, and what
    new_group raises.
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
