"""What data parallelism does with tensors that are not in the host's memory.

Each function is one rank's part, of two, and returns what was found, in proportion to what was
expected, and how often it waited for the device.
"""

from __future__ import annotations

import gc
import math
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
from support import far_streams
from support.far_tensors import calls, far, register, waits
from support.worlds import run_in_one_world

import torsh_runtime as tr
from torsh_runtime.checkpoint import Checkpointer
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.parallel.agreement import send_from

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


def torchs_clip_of_few(rank: int) -> tuple[float, float, int]:
    """The same of one part that rank 0 has and rank 1 has nothing of, beside a whole gradient on
    another device."""
    from torsh_runtime.framework.parts import Part
    from torsh_runtime.integrations.torch import parts

    register()
    (part,) = _parameters([torch.full((4 if rank == 0 else 0,), 2.0)])
    whole = torch.nn.Parameter(torch.zeros(9))
    whole.grad = torch.ones(9)
    parts.mark(part, Part("weight", tr.new_group(), 0, None))
    calls.clear()
    norm = torch.nn.utils.clip_grad_norm_([part, whole], 2.5)
    gathers = calls["all_gather_into_tensor"]
    none = torch.nn.utils.clip_grad_norm_([part], 1.0) if rank == 0 else _clipped_without(part)
    return float(norm), float(none), gathers


def _clipped_without(parameter: Any) -> torch.Tensor:
    parameter.grad = None
    return torch.nn.utils.clip_grad_norm_([parameter], 1.0)


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


def sends(rank: int) -> tuple[bool, dict[str, int]]:
    """Buffers of 53 batch normalisations, a large one, and one that is not in row-major order."""
    register()
    torch.manual_seed(rank)
    norms = [torch.nn.BatchNorm1d(5) for _ in range(53)]
    for each in norms:
        each(torch.randn(3, 5))
    shuffled = torch.randn(4, 3, 2).permute(2, 0, 1)
    values = [*(each for norm in norms for each in norm.buffers()), torch.randn(1 << 19), shuffled]
    there: list[Any] = [far(each) for each in values]
    waits.clear()
    calls.clear()
    send_from(1, there, tr.new_group())
    counted = {"waits": waits.total(), "broadcasts": calls["broadcast"]}
    everyone: list[Any] = [None, None]
    tr.all_gather_object(everyone, values)
    return all(map(torch.equal, (each.here for each in there), everyone[1])), counted


def shares_steps(rank: int) -> tuple[bool, dict[str, int]]:
    """A step of a DistributedOptimizer of 30 parameters, beside one of every rank's own."""
    register()
    torch.manual_seed(0)
    values = [torch.randn(3, number + 1) for number in range(30)]
    plain = [torch.nn.Parameter(each.clone()) for each in values]
    there: list[Any] = [torch.nn.Parameter(far(each)) for each in values]
    spread = tr.DistributedOptimizer(there, torch.optim.SGD, lr=0.1, foreach=True)
    alone = torch.optim.SGD(plain, lr=0.1)
    for number in range(2):
        for one, other in zip(there, plain, strict=True):
            other.grad = other.detach() * (number + 1)
            one.grad = far(other.grad)
        waits.clear()
        calls.clear()
        spread.step()
        alone.step()
    counted = {"waits": waits.total(), "broadcasts": calls["broadcast"]}
    return all(torch.allclose(a.here, b) for a, b in zip(there, plain, strict=True)), counted


def plain_snapshot(rank: int) -> bool:
    """A checkpoint of tensors on a device for which torch has no CUDA, such as Apple's."""
    register()
    values = [torch.full((3, number + 1), float(number)) for number in range(5)]
    state: dict[str, Any] = {
        f"far{number}": ShardedTensor(far(each), Piece.whole(tuple(each.shape)))
        for number, each in enumerate(values)
    }
    taken = far_streams.Module.cudart
    del far_streams.Module.cudart
    try:
        with TemporaryDirectory() as own:
            folder = [own]
            tr.broadcast_object_list(folder)
            saver = Checkpointer(folder[0])
            saver.save(1, state)
            loaded = saver.load({name: torch.zeros(0) for name in state})
            tr.barrier()
    finally:
        far_streams.Module.cudart = taken  # type: ignore[method-assign]
    return loaded is not None and all(map(torch.equal, loaded.values.values(), values))


def snapshots(can_lock: bool, rank: int) -> dict[str, Any]:
    """Checkpoints of tensors of which a stream of work has still to make the values."""
    register()
    streams, cudart = far_streams.module, far_streams.module.cudart()
    cudart.can_lock = can_lock
    torch.manual_seed(0)
    values = [torch.full((3, number + 1), float(number)) for number in range(5)]
    values += [torch.randn(4, 3).T, torch.randn(7).bfloat16()]
    there: list[Any] = [far(torch.zeros_like(each)) for each in values]
    state: dict[str, Any] = {
        f"far{number}": ShardedTensor(each, Piece.whole(tuple(each.shape)))
        for number, each in enumerate(there)
    }
    state["near"] = torch.ones(2)
    found: dict[str, Any] = {"locked": [], "waits": []}
    with TemporaryDirectory() as own:
        folder = [own]
        tr.broadcast_object_list(folder)
        saver = Checkpointer(folder[0])
        for step in (1, 2):
            expected = [each * step for each in values]
            for tensor, each in zip(there, expected, strict=True):
                streams.main.enqueue(partial(tensor.here.copy_, each))
            far_streams.Stream.num_waits = 0
            waits.clear()
            saver.save(step, state)
            found["waits"].append((waits.total(), far_streams.Stream.num_waits))
            found["locked"].append(len(cudart.locked))
            loaded = saver.load({name: torch.zeros(0) for name in state})
            assert loaded is not None
            pairs = zip(loaded.values.values(), [*expected, torch.ones(2)], strict=True)
            found[f"step {step}"] = all(torch.equal(*each) for each in pairs)
        tr.barrier()
    del saver
    gc.collect()
    return {**found, "left": len(cudart.locked)}


def all_results(cases: list[tuple[Any, ...]]) -> dict[Any, list[Any]]:
    """What the functions of these names returned with these arguments, on each of two ranks."""
    bodies = {each: partial(globals()[each[0]], *each[1:]) for each in cases}
    return run_in_one_world(2, bodies, 30.0)
