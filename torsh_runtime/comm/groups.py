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
    """Return whether there is a default group.

    Example:
        ```python
        if not tr.is_initialized():
            tr.init_process_group()
        ```
    """
    return has_default_group()


def get_rank(group: ProcessGroup | None = None) -> int:
    """Return this process's rank in the group, or -1 if it is no member.

    Args:
        group: The process group; None is the default group.

    Raises:
        ConfigError: If `group` is None and there is no default group.

    Example:
        ```python
        if tr.get_rank() == 0:
            print("once for the whole job")
        ```
    """
    return (group or default_group()).rank


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Return the number of ranks in the group, or -1 if this process is no member.

    Args:
        group: The process group; None is the default group.

    Raises:
        ConfigError: If `group` is None and there is no default group.

    Example:
        ```python
        batch_size = 1024 // tr.get_world_size()
        ```
    """
    return (group or default_group()).world_size


def get_backend(group: ProcessGroup | None = None) -> str:
    """Return the name of the group's backend, or "cpu:native,cuda:nccl" if it has several.

    Args:
        group: The process group; None is the default group.

    Raises:
        ConfigError: If `group` is None and there is no default group.

    Example:
        ```python
        device = "cuda" if tr.get_backend() == "nccl" else "cpu"
        ```
    """
    return (group or default_group()).backend


def get_process_group_ranks(group: ProcessGroup | None = None) -> list[int]:
    """Return the members as ranks of the default group, in order of their ranks in the group.

    Args:
        group: The process group; None is the default group.

    Raises:
        ConfigError: If `group` is None and there is no default group.

    Example:
        ```python
        odd = tr.new_group([3, 1])
        tr.get_process_group_ranks(odd)  # [1, 3], on all ranks
        ```
    """
    return list((group or default_group()).ranks)


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """Return the rank in `group` of a rank of the default group.

    Args:
        group: The process group.
        global_rank: A rank of the default group.

    Raises:
        ValueError: If it is no member of `group`.

    Example:
        ```python
        odd = tr.new_group([1, 3])
        tr.get_group_rank(odd, 3)  # 1
        ```
    """
    return group.group_rank(global_rank)


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """Return the rank in the default group of a rank of `group`.

    Args:
        group: The process group.
        group_rank: A rank of `group`.

    Raises:
        ValueError: If `group` has no such rank.

    Example:
        ```python
        odd = tr.new_group([1, 3])
        tr.get_global_rank(odd, 1)  # 3
        ```
    """
    return group.global_rank(group_rank)


def get_backend_config(group: ProcessGroup | None = None) -> str:
    """Return each device type of the group with its backend.

    Args:
        group: The process group; None is the default group.

    Returns:
        A text such as "cpu:native" or "cpu:native,cuda:nccl".

    Raises:
        ConfigError: If `group` is None and there is no default group.

    Example:
        ```python
        tr.init_process_group("native")
        tr.get_backend_config()  # "cpu:native"
        ```
    """
    serving = by_device(backend_type(get_backend(group)))
    return ",".join(f"{device}:{kind}" for device, kind in serving.items())


def get_pg_count() -> int:
    """Return the number of groups that this process is in; 0 without a default group.

    Example:
        ```python
        tr.init_process_group()
        tr.get_pg_count()  # 1
        ```
    """
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
    ConfigError. It need not call this: only the members connect to each other. Members that make
    several groups of the same ranks make them in the same order.

    Args:
        ranks: The members, as ranks of the default group; None is all of them.
        timeout: Seconds or a timedelta for the rendezvous and each operation, at most 30 days; None
            is the default group's timeout.
        backend: As in init_process_group; None is the default group's.
        pg_options: Must be None.
        use_local_synchronization: For programs written for torch; makes no difference.
        group_desc: The name by which torshctl calls the group.
        device_id: As in init_process_group.
        sort_ranks: Whether to number the ranks in ascending order; False keeps the order of
            `ranks`.

    Returns:
        The group.

    Raises:
        ConfigError: If there is no default group, for ranks that make no group, and for other
            invalid arguments.
        BackendUnavailable: If the backend is unknown or cannot be used here.
        CommAborted: If the default group has been closed.
        CommTimeout: If members did not come; it names their ranks.

    Example:
        ```python
        evens = tr.new_group(range(0, tr.get_world_size(), 2), timeout=120)
        if tr.get_rank(evens) >= 0:
            tr.all_reduce(gradient, group=evens)
        ```
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
    """Split the group into groups of the ranks with equal colours, and return this process's.

    All its ranks call this together.

    Args:
        color: An integer of 64 bits, or None to be in no group.
        key: The rank's place: ranks are ordered by it, those with equal keys as in `group`.
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta for each operation; None is the group's timeout.

    Returns:
        The group of the ranks with this rank's colour, or None if `color` is None.

    Raises:
        RuntimeError: If it is called within coalesce().
        ConfigError: If there is no default group, if this process is not in `group`, or for an
            invalid timeout.
        CommError: If the exchange among the ranks of `group` fails, and CommTimeout if members of
            the new group did not come.

    Example:
        ```python
        rank = tr.get_rank()
        node = tr.split(color=rank // 8)  # with 8 ranks on each node
        tr.all_reduce(gradient, group=node)
        ```
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
    """Return whether this process could create groups with the nccl backend.

    Example:
        ```python
        device = "cuda" if tr.is_nccl_available() else "cpu"
        ```
    """
    return is_available(BackendType.NCCL)


def is_mpi_available() -> bool:
    """Return whether this process could create groups with the mpi backend.

    Example:
        ```python
        tr.init_process_group("mpi" if tr.is_mpi_available() else "native")
        ```
    """
    return is_available(BackendType.MPI)


def is_ucc_available() -> bool:
    """Return False, because there is no such backend here.

    Example:
        ```python
        tr.is_ucc_available()  # False
        ```
    """
    return False


def is_xccl_available() -> bool:
    """Return False, because there is no such backend here.

    Example:
        ```python
        tr.is_xccl_available()  # False
        ```
    """
    return False


def is_gloo_available() -> bool:
    """Return whether this process could create groups with the gloo backend.

    Example:
        ```python
        tr.init_process_group("gloo" if tr.is_gloo_available() else "native")
        ```
    """
    return is_available(BackendType.GLOO)
