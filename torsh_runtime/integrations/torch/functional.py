"""Functional collectives whose own kernels in torch want a backend in C++ behind the group, which a
group written in Python does not have. Those here do the same with every group of CPU tensors.
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
    """Have torch call these for CPU tensors, as far as it has such operators."""
    for kernel in (all_gather_into_tensor_out, batch_p2p_ops):
        if hasattr(_operators, kernel.__name__):
            _library().impl(kernel.__name__, kernel, "CPU")


@cache
def _library() -> Any:
    library: Any = torch.library
    return library.Library("_c10d_functional", "IMPL")  # what it knows is forgotten with it


def all_gather_into_tensor_out(
    tensor: torch.Tensor, group_size: int, group: Any, *, out: torch.Tensor
) -> torch.Tensor:
    """Concatenate everyone's tensor into `out`, which wait_tensor completes. Inductor calls
    it where it puts collectives into buckets.
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
    """Each "isend" or "irecv", as those by themselves; wait_tensor completes what they return."""
    calls = zip(operations, peers, tags, tensors, strict=True)
    return [
        getattr(_operators, name)(tensor, peer, tag, group) for name, peer, tag, tensor in calls
    ]
