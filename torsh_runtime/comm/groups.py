"""Describes and creates process groups with the functions of torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torsh_runtime.backends.base import BackendType
from torsh_runtime.backends.registry import is_available
from torsh_runtime.comm.choosing import backend_type, by_device, check_no_options, use_device
from torsh_runtime.comm.default import default_group, has_default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.timeouts import Timeout, seconds


def is_initialized() -> bool:
    """Return whether there is a default group."""
    return has_default_group()


def get_rank(group: ProcessGroup | None = None) -> int:
    """Return this process's rank in the group, or -1 if it is no member."""
    return (group or default_group()).rank


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Return the number of ranks in the group, or -1 if this process is no member."""
    return (group or default_group()).world_size


def get_backend(group: ProcessGroup | None = None) -> str:
    """Return the name of the group's backend, or "cpu:native,cuda:nccl" if it has several."""
    return (group or default_group()).backend


def get_process_group_ranks(group: ProcessGroup | None = None) -> list[int]:
    """Return the members as ranks of the default group, in order of their ranks in the group."""
    return list((group or default_group()).ranks)


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """Return the rank in `group` of a rank of the default group.

    Raises ValueError if it is no member.
    """
    return group.group_rank(global_rank)


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """Return the rank in the default group of a rank of `group`.

    Raises ValueError if `group` has no such rank.
    """
    return group.global_rank(group_rank)


def get_backend_config(group: ProcessGroup | None = None) -> str:
    """Return each device type of the group with its backend.

    Examples are "cpu:native" and "cpu:native,cuda:nccl".
    """
    serving = by_device(backend_type(get_backend(group)))
    return ",".join(f"{device}:{kind}" for device, kind in serving.items())


def get_pg_count() -> int:
    """Return the number of groups that this process is in; 0 without a default group."""
    return 1 + default_group().session.count if has_default_group() else 0


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: Timeout = None,
    backend: str | BackendType | None = None,
    pg_options: None = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: object = None,
    sort_ranks: bool = True,
) -> ProcessGroup:
    """Create a group of `ranks` of the default group, or of all its ranks for None.

    A process that is not in it gets a group with rank -1, on which every operation raises
    ConfigError. It need not call this: only the members meet, so use_local_synchronization makes
    no difference. Members that make several groups of the same ranks make them in the same order.

    timeout, backend: as in init_process_group; None is the default group's. pg_options must be
    None; group_desc is what torshctl calls the group. device_id: as in init_process_group.
    sort_ranks: False numbers the group's ranks in the order of `ranks`.

    Raises ConfigError, BackendUnavailable, and CommTimeout naming members that did not come.
    """
    check_no_options(pg_options)
    parent = default_group()
    members = list(parent.ranks if ranks is None else ranks)
    kind = backend_type(parent.backend if backend is None else backend)
    use_device(device_id, kind)
    made = parent.session.group(
        parent.name,
        sorted(members) if sort_ranks else members,
        kind,
        seconds(timeout, parent.timeout),
    )
    made.note_title(group_desc or "")
    return made


def split(
    color: int | None,
    key: int = 0,
    group: ProcessGroup | None = None,
    timeout: Timeout = None,
) -> ProcessGroup | None:
    """Split the group into groups of the ranks with equal colours; this process's, or None.

    All its ranks call this together. color: an int of 64 bits, or None to be in none. Ranks are
    ordered by `key`, equal ones as they are in `group`. timeout: None is the group's. RuntimeError
    within coalesce().
    """
    parent = group or default_group()
    parent.check_not_held_back("split()")
    own = np.array([color is not None, color or 0, key], np.int64)
    everyone = parent.all_gather_numbers(own)
    if color is None:
        return None
    alike = [rank for rank, row in enumerate(everyone) if row[0] and row[1] == color]
    alike.sort(key=lambda rank: int(everyone[rank][2]))
    members = [parent.global_rank(rank) for rank in alike]
    kind = backend_type(parent.backend)
    return parent.session.group(parent.name, members, kind, seconds(timeout, parent.timeout))


def is_nccl_available() -> bool:
    """Return whether this process could make groups with the nccl backend."""
    return is_available(BackendType.NCCL)


def is_mpi_available() -> bool:
    """Return whether this process could make groups with the mpi backend."""
    return is_available(BackendType.MPI)


def is_ucc_available() -> bool:
    """Return False, because there is no such backend here."""
    return False


def is_xccl_available() -> bool:
    """Return False, because there is no such backend here."""
    return False


def is_gloo_available() -> bool:
    """Return whether this process could make groups with the gloo backend."""
    return is_available(BackendType.GLOO)
