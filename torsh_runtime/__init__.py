"""What a worker imports: process groups and collectives.

The names load lazily: importing this package loads neither numpy nor any backend.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torsh_runtime.backends.base import BackendType, PremulSum, ReduceOp
    from torsh_runtime.backends.work import Work
    from torsh_runtime.bootstrap import destroy_process_group, init_process_group
    from torsh_runtime.comm.coalescing import coalesce
    from torsh_runtime.comm.functional import (
        all_gather,
        all_gather_into_tensor,
        all_reduce,
        all_to_all,
        all_to_all_single,
        barrier,
        broadcast,
        gather,
        monitored_barrier,
        premul_sum,
        reduce,
        reduce_scatter,
        reduce_scatter_tensor,
        scatter,
    )
    from torsh_runtime.comm.group import ProcessGroup
    from torsh_runtime.comm.groups import (
        get_backend,
        get_global_rank,
        get_group_rank,
        get_process_group_ranks,
        get_rank,
        get_world_size,
        is_gloo_available,
        is_initialized,
        is_mpi_available,
        is_nccl_available,
        new_group,
        split,
    )
    from torsh_runtime.comm.messages import P2POp, batch_isend_irecv, irecv, isend, recv, send
    from torsh_runtime.comm.objects import (
        all_gather_object,
        broadcast_object_list,
        gather_object,
        recv_object_list,
        scatter_object_list,
        send_object_list,
    )
    from torsh_runtime.comm.shared import empty_shared
    from torsh_runtime.error_file import record
    from torsh_runtime.errors import (
        BackendUnavailable,
        CheckpointError,
        CommAborted,
        CommError,
        CommMismatch,
        CommTimeout,
        ConfigError,
        PeerLost,
        StoreError,
        StoreTimeout,
        TorshError,
    )
    from torsh_runtime.status import report_step

_HOMES = {
    "torsh_runtime.backends.base": (
        "BackendType",
        "PremulSum",
        "ReduceOp",
    ),
    "torsh_runtime.backends.work": ("Work",),
    "torsh_runtime.bootstrap": (
        "destroy_process_group",
        "init_process_group",
    ),
    "torsh_runtime.comm.coalescing": ("coalesce",),
    "torsh_runtime.comm.functional": (
        "all_gather",
        "all_gather_into_tensor",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "gather",
        "monitored_barrier",
        "premul_sum",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
    ),
    "torsh_runtime.comm.group": ("ProcessGroup",),
    "torsh_runtime.comm.groups": (
        "get_backend",
        "get_global_rank",
        "get_group_rank",
        "get_process_group_ranks",
        "get_rank",
        "get_world_size",
        "is_gloo_available",
        "is_initialized",
        "is_mpi_available",
        "is_nccl_available",
        "new_group",
        "split",
    ),
    "torsh_runtime.comm.messages": (
        "P2POp",
        "batch_isend_irecv",
        "irecv",
        "isend",
        "recv",
        "send",
    ),
    "torsh_runtime.comm.objects": (
        "all_gather_object",
        "broadcast_object_list",
        "gather_object",
        "recv_object_list",
        "scatter_object_list",
        "send_object_list",
    ),
    "torsh_runtime.comm.shared": ("empty_shared",),
    "torsh_runtime.error_file": ("record",),
    "torsh_runtime.errors": (
        "BackendUnavailable",
        "CheckpointError",
        "CommAborted",
        "CommError",
        "CommMismatch",
        "CommTimeout",
        "ConfigError",
        "PeerLost",
        "StoreError",
        "StoreTimeout",
        "TorshError",
    ),
    "torsh_runtime.status": ("report_step",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF]


def __getattr__(name: str) -> Any:
    try:
        home = _HOME_OF[name]
    except KeyError:
        raise AttributeError(f"module 'torsh_runtime' has no attribute {name!r}") from None
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
