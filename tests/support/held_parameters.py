"""Gradients where parameters are held whole; each function is one rank's part."""

from __future__ import annotations

from typing import Any

import torch
from support.fsdp_training import without_common_memory
from torch import nn

import torsh_runtime as tr

ROWS = 6


def _trained(replicates: bool) -> tuple[Any, Any]:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(1, ROWS, bias=False), nn.Linear(ROWS, 1, bias=False))
    for each in layers.parameters():
        nn.init.ones_(each)
    model: Any = tr.FullyShardedDataParallel(layers, min_num_params=100 if replicates else 0)
    return model, torch.optim.SGD(model.parameters(), lr=1.0)


def _pass(model: Any, factor: float, between: Any = lambda: None) -> None:
    """Add `factor` to each gradient."""
    loss = model(torch.ones(1, 1)).sum() * factor
    between()
    loss.backward()


def added(rank: int, gathers: bool, replicates: bool) -> dict[str, list[float]]:
    """Return the gradients that a first pass with 1, one with 10 while parameters are whole, and
    maybe one with 100 have left, by the time at which zero_grad() was called."""
    found = {}
    for name in ("never", "before", "after", "late", "between", "by the model", "twice", "shown"):
        for in_place in (False, True):
            with without_common_memory(gathers):
                model, optimizer = _trained(replicates)
                gradients = _scene(model, optimizer, name, in_place)
            found[f"{name}{' in place' * in_place}"] = gradients
    return found


def _scene(model: Any, optimizer: Any, name: str, in_place: bool) -> list[float]:
    def zero() -> None:
        optimizer.zero_grad(set_to_none=not in_place)

    _pass(model, 1.0)
    before = [each.grad.clone() for each in model.parameters()]
    if name == "before":
        zero()
    model.unshard()
    if name == "shown":  # by what clips or logs gradients there
        assert all(map(torch.equal, before, (each.grad for each in model.parameters())))
    if name in ("after", "twice"):
        zero()
    _pass(model, 10.0, zero if name == "late" else lambda: None)
    if name in ("between", "by the model", "twice"):
        zero() if name == "between" else model.zero_grad(set_to_none=not in_place)
        _pass(model, 100.0)
    model.reduce_gradients()
    return [float(each.grad.max()) for each in model.parameters() if each.numel()]
