"""Implements functional collectives for groups that are written in Python.

torch's own kernels require a backend in C++ behind the group, which these groups lack. The kernels
here do the same with every group of CPU tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch._C import _distributed_c10d

c10d: Any = _distributed_c10d
_operators: Any = torch.ops._c10d_functional


@cache
def install() -> None:
    """Register these kernels with torch for CPU tensors, for the operators that it has."""
    for kernel in (all_gather_into_tensor_out, batch_p2p_ops):
        if hasattr(_operators, kernel.__name__):
            _library().impl(kernel.__name__, kernel, "CPU")


@cache
def _library() -> Any:
    library: Any = torch.library
    return library.Library("_c10d_functional", "IMPL")  # its kernels live only as long as it


def all_gather_into_tensor_out(
    tensor: torch.Tensor, group_size: int, group: Any, *, out: torch.Tensor
) -> torch.Tensor:
    """Concatenate all ranks' tensors into `out`, which wait_tensor completes.

    Inductor calls it when it puts collectives into buckets.
    """
    known = c10d._resolve_process_group(group) if isinstance(group, str) else group
    c10d._register_work(out, known._allgather_base(out, tensor))
    return out


def batch_p2p_ops(
    operations: Sequence[str],
    peers: Sequence[int],
    tags: Sequence[int],
    tensors: Sequence[torch.Tensor],
    group: str,
) -> list[torch.Tensor]:
    """Do each "isend" or "irecv" on its own, and return tensors that wait_tensor completes."""
    calls = zip(operations, peers, tags, tensors, strict=True)
    return [
        getattr(_operators, name)(tensor, peer, tag, group) for name, peer, tag, tensor in calls
    ]
