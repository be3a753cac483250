"""What takes a hook away again."""

from __future__ import annotations

import itertools
from typing import Any

_numbers = itertools.count()


class RemovableHandle:
    """What registering a hook returns; remove() takes the hook away, as does the end of `with`."""

    def __init__(self, hooks: dict[int, Any], hook: Any) -> None:
        self.id = next(_numbers)
        self._hooks = hooks
        hooks[self.id] = hook

    def remove(self) -> None:
        """Do not call the hook any more; again is no error."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
