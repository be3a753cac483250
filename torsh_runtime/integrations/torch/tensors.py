"""Which tensors the backend takes, and as what."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torsh_runtime.status import DTYPES

_KNOWN = frozenset(getattr(torch, name) for name in DTYPES if hasattr(torch, name))


def checked(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, which the backend can use in place.

    NotImplementedError if it is on a GPU or not dense, ValueError if its memory holds something
    else than its values (a lazily conjugated or negated view).
    """
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise NotImplementedError(
            f"the torsh backend takes dense CPU tensors, not a {tensor.layout} one on "
            f"{tensor.device}. Move it with .cpu() or .to_dense(), or make a group with a "
            f"backend for it, such as nccl for GPUs."
        )
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            "the tensor is a conjugated or negated view, whose memory holds other values; pass "
            "tensor.resolve_conj().resolve_neg()"
        )
    return tensor


def movable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor for an operation that only moves values: as bytes if its dtype is one that
    cannot be reduced (float8 and others). ValueError if such a tensor is not contiguous.
    """
    checked(tensor)
    if tensor.dtype in _KNOWN:
        return tensor
    if not tensor.is_contiguous():
        raise ValueError(f"a {tensor.dtype} tensor must be contiguous; call .contiguous() on it")
    return tensor.view(-1).view(torch.uint8)


def only(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The single tensor of a list; torch allows several, from times of one process per node."""
    if len(tensors) != 1:
        raise ValueError(f"the torsh backend takes one tensor per rank, not {len(tensors)}")
    return tensors[0]
