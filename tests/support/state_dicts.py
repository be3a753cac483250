"""State of models and optimizers that is returned whole and set again; each function is one rank's
part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint.state_dict as of_torch
from support.ddp_faults import raised
from support.fsdp_training import Net

import torsh_runtime as tr
from torsh_runtime.layout import ShardedTensor

BATCH = 12
"""Rows of a step, over all ranks: 1, 2 and 3 divide it."""
ON_HOST = tr.StateDictOptions(full_state_dict=True, cpu_offload=True)
ON_ALL = tr.StateDictOptions(full_state_dict=True)
FROM_FIRST = tr.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
WAYS = ("ddp", "fsdp", "hybrid", "zero", "tp", "ep", "pp")


class Training:
    """A model and its optimizer in float64, wrapped or cut in one way."""

    def __init__(self, way: str, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.way = way
        self.whole = self.model = _net(way).double()
        self._pipeline: Any = None
        self.mesh: Any = None
        self._cut(tr.get_world_size() if way != "one" else 1)
        self.optimizer = self._optimizer()

    def _cut(self, ranks: int) -> None:
        whole, way = self.whole, self.way
        if way in ("ddp", "zero"):
            self.model = tr.DistributedDataParallel(whole)
        elif way == "fsdp":
            self.model = tr.FullyShardedDataParallel(whole, min_num_params=0)
        elif way == "hybrid":
            mesh = tr.init_device_mesh({"copies": ranks, "parts": 1})
            options = {"sharding_strategy": "hybrid", "process_group": mesh}
            self.model = tr.FullyShardedDataParallel(whole, min_num_params=0, **options)
        elif way == "tp":
            self.mesh = tr.init_device_mesh({"tp": ranks})
            self.model = tr.parallelize(whole, self.mesh, {"0": tr.Column(), "2": tr.Row()})
        elif way == "pp":
            self.mesh = tr.init_device_mesh({"pp": ranks})
            options = {"loss_fn": lambda out, _: out.square().mean()}
            self._pipeline = tr.PipelineParallel(whole, 2, mesh=self.mesh, **options)
            self.model = self._pipeline.module

    def _optimizer(self) -> Any:
        groups = _groups(self.model)
        if self.way == "zero":
            return tr.DistributedOptimizer(groups, torch.optim.AdamW, lr=0.01)
        return torch.optim.AdamW(groups, lr=0.01)

    def train(self, first: int, last: int) -> None:
        for step in range(first, last):
            torch.manual_seed(step)
            rows = torch.randn(BATCH, 6, dtype=torch.float64)
            self.optimizer.zero_grad()
            if self._pipeline is not None:
                self._pipeline.step(rows, rows)
            else:
                if self.way in ("ddp", "fsdp", "hybrid", "zero"):
                    rows = rows.chunk(tr.get_world_size())[tr.get_rank()]
                self.model(rows).square().mean().backward()
            self.optimizer.step()

    def states(self, options: Any = ON_HOST) -> tuple[dict[str, Any], dict[str, Any]]:
        named = {"options": options}
        return (
            tr.get_model_state_dict(self.model, **named),
            tr.get_optimizer_state_dict(self.model, self.optimizer, **named),
        )

    def set(self, model: Any, optimizer: Any, options: Any) -> None:
        tr.set_model_state_dict(self.model, model, options=options)
        tr.set_optimizer_state_dict(self.model, self.optimizer, optimizer, options=options)


def _net(way: str) -> torch.nn.Module:
    if way in ("tp", "pp", "plain"):
        sizes = (6, 12, 12, 3)
        layers = [torch.nn.Linear(*each) for each in zip(sizes, sizes[1:], strict=False)]
        return torch.nn.Sequential(layers[0], torch.nn.Tanh(), *layers[1:])
    return Net()


def _groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    named = [each for each in model.named_parameters() if each[1].requires_grad]
    biases = [each for name, each in named if name.endswith("bias")]
    others = [each for name, each in named if not name.endswith("bias")]
    return [{"params": others}, {"params": biases, "weight_decay": 0.0}]
