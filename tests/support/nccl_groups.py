"""Groups over NCCL that have their communicator from the beginning."""

from __future__ import annotations

from torsh_runtime.backends.nccl.backend import NcclBackend
from torsh_runtime.backends.nccl.late import LateNcclBackend
from torsh_runtime.store.client import StoreClient


def connect(store: StoreClient, rank: int, count: int, timeout: float) -> NcclBackend:
    """What a group's first operation on GPUs makes, once all ranks have it: without an operation
    none may leave before."""
    late = LateNcclBackend.connect(store, rank, count, timeout)
    made = late._join("init_process_group", None, timeout)
    late._news.all_connected(timeout)
    return made
