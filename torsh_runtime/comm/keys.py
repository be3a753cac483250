"""Groups by a text, as what has no room for an object names them."""

from __future__ import annotations

from functools import cache
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from torsh_runtime.comm.group import ProcessGroup


class Keys:
    """Who has which."""

    def __init__(self) -> None:
        self._numbers = count()
        self._groups: WeakValueDictionary[str, ProcessGroup] = WeakValueDictionary()

    def key_for(self, group: ProcessGroup) -> str:
        """A new one."""
        key = str(next(self._numbers))
        self._groups[key] = group
        return key

    def group_of(self, key: str) -> ProcessGroup:
        """RuntimeError if it has no group any more."""
        try:
            return self._groups[key]
        except KeyError:
            raise RuntimeError(
                "a compiled model's process group is gone: compile it again with a new group"
            ) from None


@cache
def own_keys() -> Keys:
    """Those of this process."""
    return Keys()
