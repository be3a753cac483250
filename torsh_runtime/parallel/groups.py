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
    distributed = sys.modules.get("torch.distributed")
    if given is None:
        if has_default_group() or distributed is None or not distributed.is_initialized():
            return default_group()
        given = distributed.group.WORLD
    return _from_torch(given)


def _from_torch(given: Any) -> ProcessGroup:
    from torsh_runtime.integrations.torch.unwrapping import process_group

    found = process_group(given)
    if found is None:
        raise ConfigError(
            f"process_group is a {type(given).__name__}: pass one of torsh_runtime's, or one of "
            f"torch.distributed's of backend 'torsh'"
        )
    return found
