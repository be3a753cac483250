"""What data parallelism does with tensors that are not in the host's memory.

Each function is one rank's part, of two, and returns what was found, in proportion to what was
expected, and how often it waited for the device.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from support.far_tensors import far, register, waits

import torsh_runtime as tr

SHAPES = ((5, 3), (7,), (), (0, 4), (2, 2, 2))


def _gradients(rank: int, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(rank)
    return [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in SHAPES]


def _parameters(gradients: list[torch.Tensor]) -> list[Any]:
    found = [torch.nn.Parameter(far(torch.zeros_like(each))) for each in gradients]
    for parameter, gradient in zip(found, gradients, strict=True):
        parameter.grad = far(gradient)
    return found


def _norm_of(tensors: list[torch.Tensor], norm_type: float) -> float:
    flat = torch.cat([each.reshape(-1).double() for each in tensors])
    return float(torch.linalg.vector_norm(flat, norm_type))


def clips(dtypes: tuple[str, ...], norm_type: float, rank: int) -> tuple[Any, ...]:
    """tr.clip_grad_norm_() of a model on a mesh, whose gradients are the same on both ranks."""
    register()
    gradients = [each for name in dtypes for each in _gradients(0, getattr(torch, name))]
    model = torch.nn.ParameterList(_parameters(gradients))
    mesh = tr.init_device_mesh({"dp": 2})
    expected = _norm_of(gradients, norm_type)
    tr.clip_grad_norm_(model, math.inf, mesh, norm_type)  # which makes the groups
    waits.clear()
    norm = tr.clip_grad_norm_(model, expected / 2, mesh, norm_type)
    waited = waits.total()
    clipped = _norm_of([each.grad.here for each in model], norm_type)
    return norm / expected, 2 * clipped / expected, waited


def torchs_clip(dtype: str, norm_type: float, rank: int) -> tuple[Any, ...]:
    """torch.nn.utils.clip_grad_norm_() of parameters of which each rank has a part, and a whole
    one."""
    from torsh_runtime.framework.parts import Part
    from torsh_runtime.integrations.torch import parts

    register()
    kind = getattr(torch, dtype)
    whole = torch.ones(3).to(kind)
    parameters = _parameters([*_gradients(rank, kind), whole])
    group = tr.new_group()
    for parameter in parameters[:-1]:
        parts.mark(parameter, Part("weight", group, 0, None))
    expected = _norm_of([*_gradients(0, kind), *_gradients(1, kind), whole], norm_type)
    waits.clear()
    norm = torch.nn.utils.clip_grad_norm_(parameters, expected / 2, norm_type)
    waited = waits.total()
    everyone: list[Any] = [None, None]
    tr.all_gather_object(everyone, [each.grad.here for each in parameters])
    clipped = _norm_of([*everyone[0][:-1], *everyone[1]], norm_type)
    return float(norm) / expected, 2 * clipped / expected, waited


def scales(dtypes: tuple[str, ...], last: float, rank: int) -> tuple[Any, ...]:
    """tr.ShardedGradScaler on gradients of which rank 1 has one whose last element is `last`."""
    register()
    gradients = [each for name in dtypes for each in _gradients(rank, getattr(torch, name))]
    if rank == 1:
        gradients[-1][..., -1] = last
    parameters = _parameters([each * 8 for each in gradients])
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    scaler = tr.ShardedGradScaler(init_scale=8.0)
    waits.clear()
    scaler.unscale_(optimizer)
    waited = waits.total()
    found = [each.grad.here for each in parameters]
    same = all(map(torch.equal, found[:-1], gradients[:-1]))
    scaler.step(optimizer)
    scaler.update()
    return same, scaler.get_scale(), waited


def normalises(dtypes: tuple[str, str], momentum: float | None, rows: int, rank: int) -> Any:
    """tr.SyncBatchNorm of a batch and a layer of these dtypes, of which rank 0 has so many rows:
    beside the same on the CPU, and beside the waits of the passes forward and backward."""
    register()
    torch.manual_seed(0)
    kind, own = (getattr(torch, each) for each in dtypes)
    batch = torch.randn(rows if rank == 0 else 4, 3, 2).to(kind)
    here = tr.SyncBatchNorm(3, momentum=momentum).to(own)
    there = tr.SyncBatchNorm(3, momentum=momentum).to(own)
    for table in (there._parameters, there._buffers):
        for name, each in [*table.items()]:
            moved: Any = far(each)
            table[name] = torch.nn.Parameter(moved) if table is there._parameters else moved
    waited, results = [], []
    for layer, inputs in ((here, batch.clone()), (there, far(batch))):
        waits.clear()
        outputs = layer(inputs.requires_grad_())
        waited.append(waits.total())
        (outputs.float() ** 3).sum().backward()
        waited.append(waits.total())
        grads = [inputs.grad, *(each.grad for each in layer.parameters())]
        results.append([outputs.detach(), *grads, *layer.buffers()])
    for expected, found in zip(*results, strict=True):
        assert expected.dtype is found.dtype
        torch.testing.assert_close(
            found.here, expected, rtol=2e-2 if kind.itemsize == 2 else 1e-5, atol=1e-4
        )
    return waited
