"""Finds the ranks that a wrapper is for."""

from __future__ import annotations

import sys
from typing import Any

from torsh_runtime.comm.default import default_group, has_default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.mesh.mesh import DeviceMesh


def group_of(given: Any) -> ProcessGroup:
    """Return the group itself; for a DeviceMesh the group of all its ranks, as of mesh["dp", "cp"];
    for None the default group, or torch.distributed's if only torch has one.

    Raises ConfigError for a group of torch's on another backend than "torsh", and if there is none.
    """
    if isinstance(given, ProcessGroup):
        return given
    if isinstance(given, DeviceMesh):
        return given.flatten().get_group()
    if given is None:
        given = None if has_default_group() else _torchs_default()
        if given is None:
            return default_group()
    return _from_torch(given)


def default_if_any() -> ProcessGroup | None:
    """Return the default group, or torch.distributed's of backend "torsh" if only torch has one;
    None if there is neither."""
    if has_default_group():
        return default_group()
    given = _torchs_default()
    if given is None:
        return None
    from torsh_runtime.integrations.torch.unwrapping import process_group

    return process_group(given)


def _torchs_default() -> object | None:
    """Return the default group of torch.distributed, if the program has made one."""
    if "torch.distributed" not in sys.modules:
        return None
    from torch import distributed

    return distributed.group.WORLD if distributed.is_initialized() else None


def _from_torch(given: Any) -> ProcessGroup:
    from torsh_runtime.integrations.torch.unwrapping import process_group

    found = process_group(given)
    if found is None:
        raise ConfigError(
            f"process_group is a {type(given).__name__}: pass one of torsh_runtime's, or one of "
            f"torch.distributed's of backend 'torsh'"
        )
    return found
