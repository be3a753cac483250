"""Ranks as users give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torsh_runtime.comm.group import ProcessGroup


def root_rank(
    group: ProcessGroup,
    rank: int | None,
    group_rank: int | None,
    name: str,
    default: int | None = None,
) -> int:
    """The group's rank of either a rank of the default group or the group's own.

    `name` is that of the first argument; `default`, in its place, is what neither of them means.
    Raises ValueError if both are given, neither is, or the rank is no member.
    """
    if group_rank is None:
        wanted = default if rank is None else rank
        if wanted is None:
            raise ValueError(f"give {name}, a rank of the default group, or group_{name}")
        return group.group_rank(wanted)
    if rank is not None:
        raise ValueError(f"give either {name} or group_{name}, not both")
    return group_rank
