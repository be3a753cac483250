"""Defines the handle that removes a hook."""

from __future__ import annotations

import itertools
from typing import Any

_numbers = itertools.count()


class RemovableHandle:
    """Removes a registered hook, by remove() or at the end of a `with` block.

    Example:
        ```python
        handle = model.register_forward_hook(lambda module, args, output: print(output.shape))
        model(batch)
        handle.remove()
        ```
    """

    def __init__(self, hooks: dict[int, Any], hook: Any) -> None:
        """Register the hook.

        Args:
            hooks: The hooks by number.
            hook: The hook.
        """
        self.id = next(_numbers)
        self._hooks = hooks
        hooks[self.id] = hook

    def remove(self) -> None:
        """Remove the hook. Further calls have no effect."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
