"""Models whose gradients come twice, passes that are left early, and models that are called past
their wrapper; by FullyShardedDataParallel, and by a plain model, averaged by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torsh_runtime as tr

WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "none": {"sharding_strategy": "none"},
    "full": {"min_num_params": 0, "auto_wrap_policy": tr.SizeBasedAutoWrap(1)},
    "grad-and-optimizer": {
        "min_num_params": 0,
        "auto_wrap_policy": tr.SizeBasedAutoWrap(1),
        "sharding_strategy": "grad-and-optimizer",
    },
    "one unit": {"min_num_params": 0, "auto_wrap_policy": tr.NoAutoWrap()},
}


class Repeating(nn.Module):
    """Its second layer is called twice, each time within a reentrant checkpoint, whose backward
    passes give its parameters a gradient each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, inputs: torch.Tensor, leaves_early: bool = False) -> Any:
        hidden = self.first(inputs)
        if leaves_early:
            return hidden
        for _ in range(2):
            hidden = checkpoint(self._step, hidden, use_reentrant=True)
        return self.last(hidden)

    def _step(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.again(hidden))


def _train(model: Any, called: Any, averages: bool, stops: bool) -> list[float]:
    """The sum of what it gives for ones, after each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(tr.get_rank())
    sums = []
    for _ in range(4):
        inputs = torch.randn(4, 8, generator=generator)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        if averages:
            for parameter in model.parameters():
                tr.all_reduce(parameter.grad, tr.ReduceOp.AVG)
        optimizer.step()
        with torch.no_grad():
            if stops:  # what comes next was asked for in advance
                model(inputs, leaves_early=True)
            sums.append(float(called(torch.ones(2, 8)).sum()))
    return sums


def _made() -> nn.Module:
    torch.manual_seed(0)
    return Repeating()


def repeats(stops: bool, directly: bool) -> Callable[[int], dict[str, list[float]]]:
    """What each way gives, and "plain". directly: the module in the wrapper is called after each
    step."""

    def body(rank: int) -> dict[str, list[float]]:
        torch.set_num_threads(1)
        plain = _made()
        found = {"plain": _train(plain, plain, True, stops)}
        for way, options in WAYS.items():
            model: Any = tr.FullyShardedDataParallel(_made(), **options)
            found[way] = _train(model, model.module if directly else model, False, stops)
        return found

    return body


def dropped_gradients(rank: int) -> tuple[float, float]:
    """The gradients' norm after a pass that no_sync() kept and zero_grad() dropped, and without
    that pass."""
    torch.set_num_threads(1)
    norms = []
    for keeps in (True, False):
        model: Any = tr.FullyShardedDataParallel(_made())
        inputs = torch.ones(4, 8)
        if keeps:
            with model.no_sync():
                model(inputs).sum().backward()
            model.zero_grad()
        model(inputs).square().mean().backward()
        norms.append(model.clip_grad_norm_(1e9))
    return norms[0], norms[1]
