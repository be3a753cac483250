"""Groups as torch names them, and what a process has of a group that it is not in."""

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
    """What a process gets for a group that it is not in: rank and world_size are -1, and every
    operation raises ConfigError.
    """

    def __init__(self, rank: int, ranks: Sequence[int], timeout: float, name: str) -> None:
        """`rank`: this process's in the default group; `ranks`: the members'."""
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

    _member = _other = _source = _one_per_rank = _only_at = _refuse

    def note_title(self, title: str) -> None:
        """Nothing is recorded of it here."""

    def close(self) -> None:
        """Nothing to leave."""


class NotAMember:
    """What every NonMember is equal to, as in torch.distributed: GroupMember.NON_GROUP_MEMBER."""

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
        """The default group; None without one."""
        return default_group() if has_default_group() else None


class group(metaclass=_WithWorld):  # noqa: N801  (torch's name)
    """`group.WORLD` is the default group; None without one."""


class GroupMember(metaclass=_WithWorld):
    """`GroupMember.WORLD` is the default group; every group that this process is not in is equal
    to `GroupMember.NON_GROUP_MEMBER`.
    """

    NON_GROUP_MEMBER = NotAMember()
