"""Dropout on a mesh of two replicas and two pieces; each function is one rank's part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import torsh_runtime as tr
from torsh_runtime import nn
from torsh_runtime.nn import functional

SHAPE = (6, 8, 3)
LAYOUT = tr.TensorLayout(SHAPE, (("tp", 2, tr.Shard(1, (4, 4))), ("dp", 2, tr.Shard(0))))


def nn_masks(rank: int) -> None:
    """Each rank's are pieces of those of one process, and generators go on alike."""
    mesh = tr.init_device_mesh({"dp": 2, "tp": 2})
    dp, tp = mesh.get_coordinate()
    nn.manual_seed(3)
    whole = [functional.dropout(nn.Tensor(np.ones(SHAPE))).data for _ in range(2)]
    after = nn.randn(3).data
    nn.manual_seed(3)
    heads = [4 * section + 2 * tp + at for section in range(2) for at in range(2)]
    for mask in whole:
        with tr.dropout_region(LAYOUT, mesh):
            own = functional.dropout(nn.Tensor(np.ones((3, 4, 3)))).data
        assert (own == mask[3 * dp : 3 * dp + 3, heads]).all()
    assert (nn.randn(3).data == after).all()
    with tr.dropout_region(LAYOUT, mesh), pytest.raises(tr.ConfigError, match=r"\(3, 4, 3\)"):
        functional.dropout(nn.Tensor(np.ones(SHAPE)))


def torch_masks(rank: int) -> Any:
    """Of a replicated tensor, of one that is sharded over tp, and of a replicated one again."""
    import torch

    mesh = tr.init_device_mesh({"dp": 2, "tp": 2})
    torch.manual_seed(3)
    layout = tr.TensorLayout((64,), (("tp", 2, tr.Shard(0)),))

    def masks() -> list[Any]:
        ones = torch.ones(32, requires_grad=True)
        found = [torch.nn.functional.dropout(ones)]
        with tr.dropout_region(layout, mesh):
            found.append(torch.nn.functional.dropout(ones))
        return [each.tolist() for each in (*found, torch.nn.functional.dropout(ones))]

    return masks()


def torch_recomputed(rank: int) -> None:
    """Activation checkpointing has the same mask twice, whatever was drawn in between."""
    import torch
    from torch.utils.checkpoint import checkpoint

    mesh = tr.init_device_mesh({"dp": 2, "tp": 2})
    layout = tr.TensorLayout((64,), (("tp", 2, tr.Shard(0)),))

    def region(x: Any) -> Any:
        with tr.dropout_region(layout, mesh):
            return torch.nn.functional.dropout(x)

    ones = torch.ones(32, requires_grad=True)
    result = checkpoint(region, ones, use_reentrant=False)
    with tr.dropout_region(layout, mesh):
        torch.rand(3)
    result.sum().backward()
    assert torch.equal(ones.grad, result.detach())
