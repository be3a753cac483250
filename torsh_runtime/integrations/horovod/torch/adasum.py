"""Combines gradients by Adasum (Maleki et al., 2021).

Gradients that point the same way are averaged, and orthogonal ones are added.
"""

from __future__ import annotations

import torch

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError

Tensor = torch.Tensor


def check_adasum(world_size: int, tensors: list[Tensor]) -> None:
    """Raise ConfigError where Adasum is not defined."""
    if world_size & (world_size - 1):
        raise ConfigError(
            f"op=Adasum needs a number of ranks that is a power of two, not {world_size}: start so "
            f"many workers, or use op=Average"
        )
    for each in tensors:
        if each.is_cuda:
            raise ConfigError("op=Adasum takes tensors on CPUs only: use op=Average on GPUs")
        if not each.is_floating_point():
            raise ConfigError(f"op=Adasum takes floating-point tensors, not {each.dtype}")


def adasum(tensor: Tensor, group: ProcessGroup) -> None:
    """Combine all ranks' tensors in place, pair by pair. All ranks get the same bits."""
    distance = 1
    while distance < group.world_size:
        partner = group.rank ^ distance
        other = torch.empty_like(tensor)
        sending = group.send(tensor, partner, async_op=True)
        group.recv(other, partner)
        sending.wait()
        pair = (tensor, other) if group.rank < partner else (other, tensor)
        tensor.copy_(_combine(*pair))
        distance *= 2


def _combine(first: Tensor, second: Tensor) -> Tensor:
    a, b = first.double(), second.double()
    product = (a * b).sum()
    return _weight(product, a) * a + _weight(product, b) * b


def _weight(product: Tensor, own: Tensor) -> Tensor:
    square = (own * own).sum()
    return torch.where(square > 0, 1 - product / (2 * square), torch.ones_like(square))
