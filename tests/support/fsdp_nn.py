"""FullyShardedDataParallel on models of nn, and what it refuses; each function one rank's part."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any
from unittest.mock import patch

import numpy as np

import torsh_runtime as tr
from torsh_runtime import nn, optim
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError

BATCH, STEPS = 4, 40
SMALL = {"auto_wrap_policy": tr.SizeBasedAutoWrap(100), "min_num_params": 0}


def net(seed: int) -> Any:
    nn.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 17), nn.Tanh(), nn.Linear(17, 3)
    )


def train(model: Any, share: slice, ranks: int) -> dict[str, Any]:
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    random = np.random.default_rng(1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs = random.standard_normal((BATCH * ranks, 6)).astype(np.float32)[share]
        outputs = model(nn.Tensor(inputs))
        (outputs * outputs).mean().backward()
        optimizer.step()
    return {name: np.array(value) for name, value in model.state_dict().items()}


def together(strategy: str, gathers: bool, rank: int, ranks: int) -> dict[str, Any]:
    gathering = patch.object(ProcessGroup, "common_memory", lambda *_: None)
    with gathering if gathers else nullcontext():
        options = dict(SMALL)
        if strategy == "checkpointing":
            options["activation_checkpointing"] = True
        else:
            options["sharding_strategy"] = strategy
        model = tr.FullyShardedDataParallel(net(rank), **options)
        return train(model, slice(BATCH * rank, BATCH * (rank + 1)), ranks)


def alone(ranks: int) -> dict[str, Any]:
    return train(net(0), slice(None), ranks)


def broken_forward(rank: int) -> list[bool]:
    """Return which gradients are those of one pass, after a forward pass that raised an exception
    and zero_grad() behind it."""

    class Last(nn.Linear):
        fails = False

        def forward(self, inputs: Any) -> Any:
            if self.fails:
                raise ValueError("no")
            return super().forward(inputs)

    nn.manual_seed(0)
    last = Last(17, 3)
    model: Any = tr.FullyShardedDataParallel(nn.Sequential(nn.Linear(6, 17), last), **SMALL)
    inputs = nn.Tensor(np.ones((BATCH, 6), np.float32))

    def gradients() -> list[Any]:
        model(inputs).sum().backward()
        return [np.array(each.grad.data) for each in model.parameters()]

    expected = gradients()
    last.fails = True
    with suppress(ValueError):
        model(inputs)
    model.zero_grad()
    last.fails = False
    pairs = zip(expected, gradients(), strict=True)
    return [bool((first == second).all()) for first, second in pairs]


def refusals(rank: int) -> list[str]:
    """What each wrong use says."""
    wrong = [
        lambda: tr.FullyShardedDataParallel(nn.Linear(3, 2 + rank)),
        lambda: tr.FullyShardedDataParallel(nn.Linear(3, 2), min_num_params=rank),
        lambda: tr.FullyShardedDataParallel(nn.Tanh()),
        lambda: tr.FullyShardedDataParallel(nn.Linear(3, 2), shard="full"),
        lambda: tr.FullyShardedDataParallel(nn.Linear(3, 2), sharding_strategy="all"),
        lambda: tr.FullyShardedDataParallel(
            nn.Linear(3, 2), sharding_strategy="hybrid", process_group=3
        ),
        lambda: tr.FsdpConfig(min_num_params=-1),
        lambda: tr.FsdpConfig(auto_wrap_policy=100),  # type: ignore[arg-type]
    ]
    said = []
    for call in wrong:
        try:
            call()
        except ConfigError as error:
            said.append(str(error))
    return said


def facts(rank: int, ranks: int) -> dict[str, Any]:
    """What the model says of itself, and what is kept of changes to whole parameters."""
    model: Any = tr.fsdp_wrap(net(0), config=tr.FsdpConfig(**SMALL))
    pieces = model.sharded_state_dict()
    with model.summon_full_params():
        shapes = [p.shape for p in model.parameters()]
        for parameter in model.parameters():
            parameter.data[...] = 7
    with model.summon_full_params(writeback=False):
        for parameter in model.parameters():
            parameter.data[...] = 8
    values = {float(v) for array in model.state_dict().values() for v in array.reshape(-1)}
    model.load_state_dict(net(3).state_dict())
    loaded = {name: np.array(value) for name, value in model.state_dict().items()}
    stats = model.memory_stats()
    return {
        "ratio": model.local_sharding_ratio(),
        "pieces": {name: each.piece for name, each in pieces.items()},
        "shapes": shapes,
        "values": values,
        "loaded": loaded,
        "whole": stats.parameters + stats.saved,
        "own": stats.parameters,
    }
