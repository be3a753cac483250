"""Objects by a text, for what can name them in no other way, as graphs of a compiler."""

from __future__ import annotations

from functools import cache
from itertools import count
from typing import Any
from weakref import WeakValueDictionary


class Keys:
    """Which object has which."""

    def __init__(self) -> None:
        self._numbers = count()
        self._known: WeakValueDictionary[str, Any] = WeakValueDictionary()

    def key_for(self, named: object) -> str:
        """A new one, as long as the object lives."""
        key = str(next(self._numbers))
        self._known[key] = named
        return key

    def named(self, key: str) -> Any:
        """RuntimeError for what does not live any more."""
        try:
            return self._known[key]
        except KeyError:
            raise RuntimeError(
                "the process group of a compiled model is gone: compile the model again"
            ) from None


@cache
def own_keys() -> Keys:
    """Those of this process."""
    return Keys()
