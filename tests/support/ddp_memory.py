"""What gradients take in memory; each function is one rank's part."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import torsh_runtime as tr

LAYERS, WIDTH, STEPS = 64, 512, 3
GRADIENTS = LAYERS * WIDTH * WIDTH * 4
"""Bytes."""


def of_torch(views: bool) -> tuple[float, float]:
    """As grown(), with gradients that autograd makes anew in each step."""
    import torch

    torch.set_num_threads(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    model = tr.DistributedDataParallel(torch.nn.Sequential(*layers), gradient_as_bucket_view=views)
    inputs = torch.ones(4, WIDTH)
    with torch.no_grad():
        model(inputs)  # what a forward pass takes is none of gradients' memory

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(inputs).square().mean().backward()

    return grown(model, step)


def of_nn(views: bool) -> tuple[float, float]:
    """The same of a model of nn."""
    from torsh_runtime import nn, optim

    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    model = tr.DistributedDataParallel(nn.Sequential(*layers), gradient_as_bucket_view=views)
    inputs = nn.Tensor(np.ones((4, WIDTH), np.float32))
    optimizer = optim.SGD(model.parameters(), lr=0.0)

    def step() -> None:
        optimizer.zero_grad()
        (model(inputs) ** 2).mean().backward()

    return grown(model, step)


def of_dropped() -> float:
    """By how much the rank's shared memory is larger when four wrappers have been used and
    dropped: in sizes of all gradients of one."""
    from torsh_runtime import nn

    inputs = nn.Tensor(np.ones((4, WIDTH), np.float32))
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    before = _taken()
    for _ in range(4):
        model = tr.DistributedDataParallel(nn.Sequential(*layers))
        (model(inputs) ** 2).mean().backward()
        model.zero_grad()
        del model
        gc.collect()
        tr.barrier()
    return float((_taken() - before)[1] / GRADIENTS)


def grown(model: Any, step: Callable[[], None]) -> tuple[float, float]:
    """By how much the rank's own memory, and its part of what it shares, was larger at most when a
    gradient had come or a step was over: in sizes of all gradients together."""
    before, most = _taken(), np.zeros(2)

    def look(_: object = None) -> None:
        np.maximum(most, _taken() - before, out=most)

    for parameter in list(model.parameters())[::8]:  # each look takes milliseconds
        parameter.register_post_accumulate_grad_hook(look)
    tr.barrier()
    for _ in range(STEPS):
        step()
        tr.barrier()
        look()
        tr.barrier()
    own, shared = most / GRADIENTS
    return float(own), float(shared)


def _taken() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Bytes of this process: memory of its own, and shared memory by halves if two use it."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(size) * 1024.0 for name, size, *_ in map(str.split, lines)}
    return np.array([sizes["Pss_Anon:"], sizes["Pss_Shmem:"]])
