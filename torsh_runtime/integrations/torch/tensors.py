"""Prepares tensors for the backend, which itself refuses tensors such as those on GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torsh_runtime.enumerations import DTYPES

_REDUCIBLE = frozenset(getattr(torch, name) for name in DTYPES if hasattr(torch, name))


def only(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the single tensor of a list, which torch has from when a process had several GPUs."""
    if len(tensors) != 1:
        raise ValueError(f"the torsh backend takes one tensor per rank, not {len(tensors)}")
    return tensors[0]


def movable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor for an operation that only moves values.

    A dtype that cannot be reduced, such as float8, is returned as bytes. Raises ValueError if the
    tensor's memory cannot be seen as bytes.
    """
    if tensor.dtype in _REDUCIBLE and not tensor.is_conj():
        return tensor
    if tensor.is_conj() or not tensor.is_contiguous():
        raise ValueError(
            f"a {tensor.dtype} tensor cannot be moved while it is a lazy conjugate or not "
            f"contiguous; pass tensor.resolve_conj().contiguous()"
        )
    return tensor.view(-1).view(torch.uint8)
