"""Trains on one GPU with our wrappers and with torch's: cases of benchmarks/gpu.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy as TorchOffload
from torch.distributed.fsdp import OffloadPolicy as TorchKept
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as TorchDdp

import torsh_runtime as tr
from benchmarks.gpu_device import MIB, Device, Step, block, steps_per_second

Figures = dict[str, float]
AHEAD = (10, 40)
"""Numbers of steps between two synchronisations."""
Wrap = Callable[[nn.Module], nn.Module]


def linears(width: int, depth: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))


class Block(nn.Module):
    """Has the twelve tensors of a block of GPT-2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixing, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [part.unflatten(-1, (4, -1)) for part in self.mixing(self.first(x)).chunk(3, -1)]
        query, key, value = (part.transpose(1, 2) for part in heads)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mixed(seen.transpose(1, 2).flatten(-2))
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))


class Gpt(nn.Module):
    """Has 290 tensors: two of embeddings, and twelve in each of 24 blocks."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(1024, width), nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(24)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        seen = self.blocks(self.words(tokens) + self.places(places))
        return functional.linear(seen, self.words.weight)


def training(model: nn.Module, data: torch.Tensor) -> Step:
    """Return a step of AdamW on a wrapped model."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        model(data).float().square().mean().backward()
        optimizer.step()

    return step


def sharded(shard: Callable[[nn.Module], object], model: nn.Module) -> nn.Module:
    """Return the model with each of its layers as a unit."""
    for layer in model.children():
        shard(layer)
    shard(model)
    return model


def sharders(device: Device, is_offloaded: bool = False) -> dict[str, Wrap]:
    """Return what shards a model, by our function and by torch's of the same name."""
    own = tr.CPUOffloadPolicy() if is_offloaded else tr.OffloadPolicy()
    theirs = TorchOffload(pin_memory=device.is_gpu) if is_offloaded else TorchKept()
    mesh = init_device_mesh(device.name.partition(":")[0], (tr.get_world_size(),))
    shard = partial(tr.fully_shard, offload_policy=own)
    shard_by_torch = partial(torch_fully_shard, mesh=mesh, offload_policy=theirs)
    return {
        "ours": lambda model: sharded(shard, model),
        "torch": lambda model: sharded(shard_by_torch, model),
    }


def fsdp(device: Device) -> Figures:
    """Measure sharded steps, with few and with many between synchronisations."""
    width, found = device.size(4096, 32), {}
    data = torch.randn(256, width, device=device.name)
    for name, wrap in sharders(device).items():
        device.forget()
        before = device.allocated()
        step = training(wrap(linears(width, 8).to(device.name)), data)
        block(device, step, 2)
        for ahead in AHEAD:
            device.forget()
            seconds = block(device, step, device.size(ahead, 1))
            found[f"{name} step, {ahead} steps ahead"] = seconds
            found[f"{name} peak, {ahead} steps ahead"] = (device.peak() - before) / MIB
        del step
    return found


def launch_bound(device: Device) -> Figures:
    """Time sharded steps of many small layers, which the processor's work bounds."""
    width = device.size(256, 16)
    data = torch.randn(16, width, device=device.name)
    steps = {
        name: training(wrap(linears(width, device.size(48, 4)).to(device.name)), data)
        for name, wrap in sharders(device).items()
    }
    times = steps_per_second(device, steps, device.size(20, 1))
    return {f"{name} step": seconds for name, seconds in times.items()}


def replicas(device: Device, make: Callable[[], nn.Module], data: torch.Tensor) -> Figures:
    wraps: dict[str, Wrap] = {"ours": tr.DistributedDataParallel, "torch": TorchDdp}
    steps = {name: training(wrap(make().to(device.name)), data) for name, wrap in wraps.items()}
    times = steps_per_second(device, steps, device.size(15, 1))
    return {f"{name} step": seconds for name, seconds in times.items()}


def ddp(device: Device) -> Figures:
    """Time steps of replicas with few large tensors."""
    width = device.size(2048, 32)
    data = torch.randn(64, width, device=device.name)
    return replicas(device, lambda: linears(width, 6), data)


def ddp_gpt(device: Device) -> Figures:
    """Time steps of replicas with many small tensors."""
    width, tokens = device.size(256, 16), device.size(128, 8)
    data = torch.zeros(4, tokens, dtype=torch.int64, device=device.name)
    return replicas(device, lambda: Gpt(width, tokens), data)


def offload(device: Device) -> Figures:
    """Measure sharded steps whose parts and optimizer are in the processor's memory."""
    width, found = device.size(2048, 32), {}
    data = torch.randn(64, width, device=device.name)
    for name, wrap in sharders(device, is_offloaded=True).items():
        device.forget()
        before = device.allocated()
        step = training(wrap(linears(width, 8).to(device.name)), data)
        block(device, step, 1)
        device.forget()
        found[f"{name} step"] = block(device, step, device.size(5, 1))
        found[f"{name} peak"] = (device.peak() - before) / MIB
        del step
    return found
