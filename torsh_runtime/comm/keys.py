"""Names objects by strings, for a compiler's graphs, which can refer to them in no other way."""

from __future__ import annotations

from functools import cache
from itertools import count
from typing import Any
from weakref import WeakValueDictionary


class Keys:
    """Maps keys to objects that it does not keep alive."""

    def __init__(self) -> None:
        self._numbers = count()
        self._known: WeakValueDictionary[str, Any] = WeakValueDictionary()

    def key_for(self, named: object) -> str:
        """Return a new key, which is valid as long as the object lives."""
        key = str(next(self._numbers))
        self._known[key] = named
        return key

    def named(self, key: str) -> Any:
        """Return the object of a key. Raises RuntimeError if it no longer lives."""
        try:
            return self._known[key]
        except KeyError:
            raise RuntimeError(
                "the process group of a compiled model is gone: compile the model again"
            ) from None


@cache
def own_keys() -> Keys:
    """Return the keys of this process."""
    return Keys()
