"""Mixed precision of FullyShardedDataParallel, and its scaler; each function one rank's part."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from support.fsdp_training import without_common_memory

import torsh_runtime as tr
from torsh_runtime import optim

BATCH, STEPS = 4, 30
SMALL = {"auto_wrap_policy": tr.SizeBasedAutoWrap(100), "min_num_params": 0}
MIXED = {
    "bfloat16": tr.MixedPrecision(param_dtype=torch.bfloat16),
    "reduced in float32": tr.MixedPrecision(torch.bfloat16, reduce_dtype=torch.float32),
    "only reduced": tr.MixedPrecision(reduce_dtype="bfloat16"),
    "float16": tr.MixedPrecision(param_dtype=np.float16),
}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 33), torch.nn.Linear(33, 7)
        self.last = torch.nn.Linear(7, 3)
        self.register_buffer("factor", torch.tensor(1.5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(inputs))
        return self.last(torch.tanh(self.second(hidden))) * self.factor


def batches(ranks: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(ranks, BATCH, 6, generator=generator) for _ in range(STEPS)]


def together(name: str, strategy: str, gathers: bool, rank: int, ranks: int) -> Any:
    """Losses, and parameters at the end."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    options = {**SMALL, "min_num_params": 50, "sharding_strategy": strategy}
    with without_common_memory(gathers):
        model: Any = tr.FullyShardedDataParallel(Net(), mixed_precision=MIXED[name], **options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses = []
        for batch in batches(ranks):
            optimizer.zero_grad()
            outputs = model(batch[rank])
            loss = outputs.float().square().mean()
            loss.backward()
            assert all(p.dtype is p.grad.dtype is torch.float32 for p in model.parameters())
            optimizer.step()
            losses.append(loss.item())
        return losses, dict(model.state_dict()), str(outputs.dtype)


def alone(name: str, ranks: int) -> Any:
    """The same in one process: parameters and averages are rounded where the dtypes say so."""
    torch.manual_seed(0)
    mixed, master, low = MIXED[name], Net(), Net()
    computed = getattr(torch, mixed.param_dtype or "float32")
    reduced = getattr(torch, mixed.reduce_dtype or mixed.param_dtype or "float32")
    low.to(computed)
    low.factor = master.factor
    optimizer = torch.optim.AdamW(master.parameters(), lr=0.01)
    losses = []
    for batch in batches(ranks):
        gradients = [torch.zeros_like(p) for p in master.parameters()]
        each = []
        for rows in batch:
            for own, other in zip(master.parameters(), low.parameters(), strict=True):
                other.data.copy_(own)
                other.grad = None
            loss = low(rows.to(computed)).float().square().mean()
            loss.backward()
            for total, other in zip(gradients, low.parameters(), strict=True):
                total += other.grad.to(reduced).float() / ranks
            each.append(loss.item())
        for own, total in zip(master.parameters(), gradients, strict=True):
            own.grad = total.to(reduced).float()
        optimizer.step()
        losses.append(each)
    return losses, master.state_dict()


def keeps_low(rank: int) -> Any:
    """Dtypes of gradients and buffers if optimizers are to get them as they were averaged."""
    mixed = tr.MixedPrecision("bfloat16", buffer_dtype="bfloat16", keep_low_precision_grads=True)
    found = []
    for gathers in (False, True):
        with without_common_memory(gathers):
            model: Any = tr.FullyShardedDataParallel(Net(), mixed_precision=mixed, **SMALL)
            for _ in range(2):
                model(torch.ones(2, 6, dtype=torch.float64)).sum().backward()
            found.append({str(p.grad.dtype) for p in model.parameters()})
            found.append({str(p.dtype) for p in model.parameters()})
            found.append({str(each.dtype) for each in model.buffers()})
    return found


def does_not_cast(rank: int) -> str:
    mixed = tr.MixedPrecision("bfloat16", cast_forward_inputs=False)
    model: Any = tr.FullyShardedDataParallel(Net(), mixed_precision=mixed, **SMALL)
    try:
        model(torch.ones(2, 6))
    except RuntimeError as error:
        return str(error)
    return "nothing"


def accumulates(gathers: bool, rank: int) -> Any:
    """Gradients of one batch, and of it three times: by adding averages, and by no_sync."""
    with without_common_memory(gathers):
        mixed = tr.MixedPrecision("bfloat16", reduce_dtype="float32")
        model: Any = tr.FullyShardedDataParallel(Net(), mixed_precision=mixed, **SMALL)
        inputs = torch.full((2, 6), 1.0 + rank)
        found = []
        for times, skips in ((1, False), (3, False), (3, True)):
            model.zero_grad()
            for number in range(times):
                if skips and number < times - 1:
                    with model.no_sync():
                        model(inputs).sum().backward()
                else:
                    model(inputs).sum().backward()
            found.append(torch.cat([p.grad.flatten() for p in model.parameters()]) / times)
        return found


def of_nn(dtype: str, gathers: bool, rank: int, ranks: int) -> Any:
    """A model of nn, before and after."""
    from torsh_runtime import nn

    nn.manual_seed(rank)
    layers = nn.Sequential(nn.Linear(6, 33), nn.Tanh(), nn.Linear(33, 3))
    mixed = tr.MixedPrecision(dtype, reduce_dtype="float32")
    with without_common_memory(gathers):
        model: Any = tr.FullyShardedDataParallel(layers, mixed_precision=mixed, **SMALL)
        optimizer = optim.AdamW(model.parameters(), lr=0.01)
        scaler = tr.ShardedGradScaler(init_scale=64.0)
        losses = []
        for batch in batches(ranks):
            optimizer.zero_grad()
            outputs = model(nn.Tensor(batch[rank].numpy()))
            loss = (outputs * outputs).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(float(loss.data))
        assert {p.data.dtype.name for p in model.parameters()} == {"float32"}
        return losses


def scaled(rank: int) -> Any:
    """Steps of which the second is infinite in rank 1's part alone; as torch's scaler tells."""
    torch.manual_seed(0)
    model: Any = tr.FullyShardedDataParallel(torch.nn.Linear(8, 8, bias=False), **SMALL)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    options = {"init_scale": 8.0, "growth_interval": 2}
    scaler, bare = tr.ShardedGradScaler(**options), torch.amp.GradScaler("cpu", **options)
    found = []
    for number in range(4):
        optimizer.zero_grad()
        before = model.state_dict()["weight"].clone()
        scaler.scale(model(torch.ones(1, 8)).sum()).backward()
        if number == 1 and rank == 1:
            model.module.weight.grad[0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        change = (before - model.state_dict()["weight"]).round(decimals=4).unique().tolist()
        found.append((change, scaler.get_scale()))
    bare.load_state_dict(scaler.state_dict())
    scaler.load_state_dict(bare.state_dict())
    return found, scaler.state_dict() == bare.state_dict()


def scaled_sparse(rank: int) -> Any:
    """A sparse gradient whose sum for one row is infinite on one rank, and one that is not."""
    table = torch.nn.Embedding(3, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    scaler, found = tr.ShardedGradScaler(init_scale=4.0), []
    for factor in (1.0, 5e37):
        optimizer.zero_grad()
        before = table.weight.detach().clone()
        scaler.scale(table(torch.tensor([1, 1])).sum() * (factor if rank else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append((before - table.weight).round(decimals=4).tolist())
    return found


def scaler_misused(rank: int) -> list[str]:
    scaler = tr.ShardedGradScaler()
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler.unscale_(optimizer)
    stepped = tr.ShardedGradScaler()
    stepped.step(optimizer)
    calls = (
        lambda: scaler.unscale_(optimizer),
        lambda: stepped.step(optimizer),
        lambda: tr.ShardedGradScaler(growth_factor=1.0),
        lambda: tr.ShardedGradScaler().update(),
    )
    said = []
    for call in calls:
        try:
            call()
        except (RuntimeError, ValueError) as error:
            said.append(str(error))
    off = tr.ShardedGradScaler(enabled=False)
    loss = (parameter * 2).sum()
    assert off.scale(loss) is loss
    loss.backward()
    off.step(optimizer)
    off.update()
    return [*said, str(parameter.tolist())]
