"""Holds the default group, the one piece of global state."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torsh_runtime.errors import ConfigError

if TYPE_CHECKING:
    from torsh_runtime.comm.group import ProcessGroup

_default: ProcessGroup | None = None


def default_group() -> ProcessGroup:
    """Return the default group. Raises ConfigError if there is none."""
    if _default is None:
        raise ConfigError("there is no process group yet: call init_process_group() first")
    return _default


def has_default_group() -> bool:
    return _default is not None


def set_default_group(group: ProcessGroup | None) -> None:
    global _default
    _default = group


# A forked child is no rank: what it did would be taken for its parent's doing.
os.register_at_fork(after_in_child=lambda: set_default_group(None))
