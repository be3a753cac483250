"""Provides torch's names for groups, and a stand-in for a group that a process is not in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn, cast

from torsh_runtime.backends.base import Backend, BackendType
from torsh_runtime.backends.reconfiguration import Refusing
from torsh_runtime.comm.default import default_group, has_default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError


class NonMember(ProcessGroup):
    """Stands in for a group that this process is not in.

    Its rank and world_size are -1, and every operation raises ConfigError.
    """

    def __init__(self, rank: int, ranks: Sequence[int], timeout: float, name: str) -> None:
        """Create it; `rank` is this process's in the default group, `ranks` are the members."""
        self._words = (
            f"rank {rank} is not in the group of ranks {list(ranks)} and can do nothing in it. Use "
            f"it only where get_rank(group) is not -1."
        )
        refusing = Refusing(_Nobody, partial(ConfigError, self._words))
        super().__init__(cast(Backend, refusing), timeout, ranks, name)

    @property
    def session(self) -> NoReturn:
        self._refuse()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigError(self._words)

    suspend = resume = _refuse
    _member = _other = _source = _one_per_rank = _only_at = _refuse

    def note_title(self, title: str) -> None:
        """Do nothing, since this process records nothing of the group."""

    def close(self) -> None:
        """Do nothing, since there is nothing to leave."""


class NotAMember:
    """Compares equal to every NonMember, as torch's GroupMember.NON_GROUP_MEMBER."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NonMember | NotAMember)

    def __hash__(self) -> int:
        return hash(NotAMember)


class _Nobody:
    rank = world_size = -1
    type = BackendType.SINGLE


class _WithWorld(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:  # noqa: N802  (torch's name)
        """Return the default group, or None if there is none."""
        return default_group() if has_default_group() else None


class group(metaclass=_WithWorld):  # noqa: N801  (torch's name)
    """Holds the default group as `group.WORLD`, which is None without one.

    Example:
        ```python
        tr.group.WORLD is None  # True before init_process_group()
        ```
    """


class GroupMember(metaclass=_WithWorld):
    """Holds the default group as `GroupMember.WORLD`, which is None without one.

    Every group that this process is not in is equal to `GroupMember.NON_GROUP_MEMBER`.

    Example:
        ```python
        evens = tr.new_group(range(0, tr.get_world_size(), 2))
        if evens == tr.GroupMember.NON_GROUP_MEMBER:
            print("this rank is odd")
        ```
    """

    NON_GROUP_MEMBER = NotAMember()
