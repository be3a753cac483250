"""What stands beside DistributedDataParallel; each function is one rank's part."""

from __future__ import annotations

import copy
from typing import Any

import torch
from support.ddp_faults import Two, raised
from support.ddp_training import wrapped
from torch import nn

import torsh_runtime as tr


def join(rank: int, ranks: int, initial: bool, passes: int) -> Any:
    """Rank r has r + 1 groups of batches of `passes`; the parameters of all afterwards, and those
    of one process that does what they should do together."""
    model = wrapped(Two, gradient_accumulation_steps=passes, bucket_size_mb=4e-5)
    alone = copy.deepcopy(model.module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join(divide_by_initial_world_size=initial):
        for _ in range(rank + 1):
            for _ in range(passes):
                model(torch.full((2, 3), 1.0 + rank)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(ranks):
        active = range(step, ranks)
        optimizer.zero_grad()
        for each in active:
            loss = alone(torch.full((2, 3), 1.0 + each)).square().sum()
            (loss * passes / (ranks if initial else len(active))).backward()
        optimizer.step()
    return _numbers(model), _numbers(alone)


def early_end(rank: int, ranks: int) -> Any:
    model = wrapped(Two)

    def loop() -> None:
        with model.join(throw_on_early_termination=True):
            for _ in range(rank + 1):
                model(torch.ones(2, 3)).sum().backward()

    return raised(loop)


def optimizer(rank: int, ranks: int, name: str) -> Any:
    """Trains with the optimizer spread and whole, with a restart from saved state between."""
    kind = getattr(torch.optim, name)
    models = [wrapped(Two).module for _ in range(2)]
    spread = tr.DistributedOptimizer(models[0].parameters(), kind, lr=0.1)
    whole = kind(models[1].parameters(), lr=0.1)
    schedules = [torch.optim.lr_scheduler.StepLR(each, 1, 0.5) for each in (spread, whole)]

    def train() -> None:
        for model, each, schedule in zip(models, (spread, whole), schedules, strict=True):
            for _ in range(2):
                each.zero_grad()
                model(torch.ones(2, 3)).square().sum().backward()
                each.step()
            schedule.step()

    train()
    gathered = [spread.gather_state_dict(dst=ranks - 1)]
    tr.broadcast_object_list(gathered, src=ranks - 1)
    state = spread.state_dict()
    spread = tr.DistributedOptimizer(models[0].parameters(), kind, lr=7.0)
    spread.load_state_dict(gathered[0] if name == "Adam" else state)
    schedules[0] = torch.optim.lr_scheduler.StepLR(spread, 1, 0.5)
    train()
    kept = sum(len(values) for values in spread.state_dict()["local"]["state"].values())
    plain = kind(models[1].parameters(), lr=7.0)
    plain.load_state_dict(gathered[0])
    return _numbers(models[0]), _numbers(models[1]), kept, plain.state_dict()["param_groups"][0]


def batch_norm(rank: int, ranks: int, dims: int, dtype: torch.dtype) -> Any:
    """Outputs, gradients and running figures with uneven batches, and those of one process."""
    torch.manual_seed(0)
    kinds = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d}
    plain = nn.Sequential(kinds[dims](3), nn.Tanh()).to(dtype)
    with torch.no_grad():
        plain[0].weight.uniform_(0.5, 2)
    synced = tr.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    assert type(synced[0]) is tr.SyncBatchNorm
    sizes = [each + 2 for each in range(ranks)]
    whole = torch.randn(sum(sizes), 3, *([4] * dims)[:dims], dtype=dtype) * 3 + 5
    whole = whole if dims > 1 else whole[..., 0]
    own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    results = []
    for model, rows in ((synced, own), (plain, slice(None))):
        inputs = whole[rows].clone().requires_grad_()
        outputs = model(inputs)
        (outputs * whole[rows]).sum().backward()
        model.eval()
        grads = [p.grad.clone() for p in model.parameters()]
        if model is synced:
            for grad in grads:
                tr.all_reduce(grad)
        picked = slice(None) if model is synced else own
        after = model(whole[own])
        results.append([outputs[picked], inputs.grad[picked], *grads, *model.buffers(), after])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-4, atol=1e-4)


def averages(rank: int, ranks: int) -> Any:
    """Trees of several kinds."""
    import numpy as np

    value = float(rank)
    tree = {
        "a": np.full((2, 2), value, np.float32),
        "b": [torch.full((3,), value), (value, None)],
    }
    found = tr.average_gradients(tree)
    assert tree["a"][0, 0] == value
    import jax.numpy as jnp

    moved = tr.average_gradients({"w": jnp.full((2,), value)})
    assert type(moved["w"]) is type(jnp.zeros(1))
    return [
        float(found["a"][1, 1]),
        float(found["b"][0][2]),
        found["b"][1][0],
        found["b"][1][1],
        float(moved["w"][1]),
    ]


def join_in_parts(rank: int, ranks: int, accumulates: bool) -> Any:
    """Passes that are not averaged, and ones without gradients, in a join() of uneven ranks."""
    model = wrapped(lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    inputs = torch.arange(12.0).reshape(4, 3).square()
    with model.join():
        for _ in range(rank + 1):
            with model.no_sync() if accumulates else torch.no_grad():
                outputs = model(inputs)
                if accumulates:
                    outputs.square().sum().backward()
            model(inputs).square().sum().backward()
    return _numbers(model)


def batch_norm_aside(rank: int, ranks: int) -> Any:
    """Where torch's class asks nobody: on one rank, in evaluation without running figures. And the
    dtypes of what comes out."""
    if rank == 0:
        tr.SyncBatchNorm(3, track_running_stats=False).eval()(torch.randn(4, 3))
    kinds = []
    for kind in (torch.float16, torch.bfloat16, torch.float32):
        for layer in (tr.SyncBatchNorm(3), tr.SyncBatchNorm(3).to(kind)):
            inputs = torch.randn(4, 3).to(kind).requires_grad_()
            outputs = layer(inputs)
            outputs.sum().backward()
            kinds.append((outputs.dtype is kind, inputs.grad.dtype is kind))
    return kinds


def averaged_halves(rank: int, ranks: int) -> float:
    """The running mean, in bfloat16, of three batches: of twice 0, and of 380."""
    layer = tr.SyncBatchNorm(1, momentum=None).bfloat16()
    for mean in (0.0, 0.0, 380.0):
        layer(torch.full((4, 1), mean))
    return float(layer.running_mean)


def empty_batches(rank: int, ranks: int) -> Any:
    """Running figures after a step in which no rank has a row, and after one in which rank 1 has
    none; the gradients of the weights."""
    layer = tr.SyncBatchNorm(3)
    found = []
    for rows in (0, 4 if rank == 0 else 0):
        inputs = torch.arange(rows * 3.0).reshape(rows, 3).requires_grad_()
        outputs = layer(inputs)
        outputs.square().sum().backward()
        assert outputs.shape == inputs.grad.shape == (rows, 3)
        found.append([layer.running_mean.tolist(), int(layer.num_batches_tracked)])
        found.append(bool(layer.weight.grad.isfinite().all()))
    return found


def one_wants_gradients(rank: int, ranks: int) -> Any:
    """Rank 0 alone wants its input's gradient, which is as that of one process; what is said when
    rank 1 records nothing; then all goes on."""
    torch.manual_seed(0)
    whole = torch.randn(6, 3)
    rows = slice(0, 4) if rank == 0 else slice(4, 6)
    layer = tr.SyncBatchNorm(3, affine=False)

    def step(inputs: torch.Tensor) -> torch.Tensor:
        (layer(inputs) * whole[rows]).square().sum().backward()
        return inputs

    inputs = step(whole[rows].clone().requires_grad_(rank == 0))
    found = inputs.grad
    with torch.set_grad_enabled(rank == 0):
        text = raised(lambda: layer(whole[rows].clone().requires_grad_()))
    step(whole[rows].clone().requires_grad_())
    alone = whole.clone().requires_grad_()
    (nn.BatchNorm1d(3, affine=False)(alone) * whole).square().sum().backward()
    if rank == 0:
        torch.testing.assert_close(found, alone.grad[rows])
    return found is None, text


class Sometimes(nn.Module):
    """A layer before a normalisation over ranks, which some ranks leave out. It is the last one by
    its number, so its gradients are in the first bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 3), tr.SyncBatchNorm(3), nn.Linear(3, 3)
        self.sometimes = nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor, leaves_out: bool) -> torch.Tensor:
        hidden = self.first(inputs)
        hidden = hidden if leaves_out else self.sometimes(hidden)
        return self.last(self.norm(hidden))


def batch_norm_with_unused(rank: int, ranks: int, overlaps: bool | None) -> Any:
    """Each rank leaves the layer out in another step."""
    model = wrapped(
        Sometimes,
        find_unused_parameters=True,
        bucket_size_mb=1e-6,
        overlap_communication=overlaps,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        inputs = torch.arange(12.0).reshape(4, 3).sin() + rank + step
        model(inputs, step % ranks == rank).square().mean().backward()
        optimizer.step()
    return _numbers(model)


class Counting(torch.optim.SGD):
    """Keeps figures of its own in its groups, as some optimizers do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


def optimizer_grows(rank: int, ranks: int) -> Any:
    """A group of parameters that comes later, and options that the optimizer changes."""
    models = [wrapped(Two).module for _ in range(2)]
    found = []
    for model, make in zip(models, (tr.DistributedOptimizer, None), strict=True):
        own = model.first.parameters()
        each = make(own, Counting, lr=0.1) if make else Counting(own, lr=0.1)
        for step in range(3):
            if step == 1:
                each.add_param_group({"params": list(model.second.parameters()), "lr": 0.5})
            each.zero_grad()
            model(torch.ones(2, 3)).square().mean().backward()
            each.step()
        found.append((_numbers(model), [group["steps"] for group in each.param_groups]))
    return found


def averages_of_numbers(rank: int, ranks: int) -> Any:
    """Ints, and a dict whose keys came in another order on each rank."""
    import numpy as np

    tree = {"a": 1.0, "b": np.full(1, 5.0)}
    turned = dict(reversed(tree.items())) if rank else tree
    return tr.average_gradients({"n": rank, **{k: turned[k] for k in turned if k == "a"}}), [
        float(tr.average_gradients({k: float(np.sum(v)) for k, v in turned.items()})[k])
        for k in "ab"
    ]


def _numbers(model: nn.Module) -> list[float]:
    return [float(value) for each in model.parameters() for value in each.flatten()]
