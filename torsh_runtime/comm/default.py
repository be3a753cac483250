"""The default group: the one piece of global state."""

from __future__ import annotations

import os

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.non_member import NotAMember
from torsh_runtime.errors import ConfigError

_default: ProcessGroup | None = None


def default_group() -> ProcessGroup:
    """The default group. ConfigError if there is none."""
    if _default is None:
        raise ConfigError("there is no process group yet: call init_process_group() first")
    return _default


def has_default_group() -> bool:
    return _default is not None


def set_default_group(group: ProcessGroup | None) -> None:
    global _default
    _default = group


class _WithWorld(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:  # noqa: N802  (torch's name)
        """The default group; None without one."""
        return _default


class group(metaclass=_WithWorld):  # noqa: N801  (torch's name)
    """`group.WORLD` is the default group; None without one."""


class GroupMember(metaclass=_WithWorld):
    """`GroupMember.WORLD` is the default group; every group that this process is not in is equal
    to `GroupMember.NON_GROUP_MEMBER`.
    """

    NON_GROUP_MEMBER = NotAMember()


# A forked child is no rank: what it did would be taken for its parent's doing.
os.register_at_fork(after_in_child=lambda: set_default_group(None))
