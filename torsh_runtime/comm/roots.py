"""Resolves the root ranks that users pass."""

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
    """Return the root's rank in `group`, given as a rank of the default group or of `group`.

    `name` is what the caller calls `rank`. If neither rank is given, `default` is used as a rank
    of the default group. Raises ValueError if both are given, if neither is and there is no
    default, or if the rank of the default group is no member.
    """
    if group_rank is None:
        wanted = default if rank is None else rank
        if wanted is None:
            raise ValueError(f"give {name}, a rank of the default group, or group_{name}")
        return group.group_rank(wanted)
    if rank is not None:
        raise ValueError(f"give either {name} or group_{name}, not both")
    return group_rank
