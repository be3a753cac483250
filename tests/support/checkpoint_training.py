"""Trainings that save and load checkpoints; each function is one rank's part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import torsh_runtime as tr
from torsh_runtime.checkpoint import Checkpointer, CheckpointReader

BATCH = 24
"""Rows of a step, over all ranks: 1, 2, 3, 4 and 8 divide it."""
_FSDP = {"auto_wrap_policy": tr.SizeBasedAutoWrap(100), "min_num_params": 40}


class Training:
    """A model and its optimizer, and batches that depend on the step alone."""

    def __init__(self, framework: str, way: str, rank: int = 0, ranks: int = 1) -> None:
        self._rows = slice(BATCH // ranks * rank, BATCH // ranks * (rank + 1))
        make = _torch if framework == "torch" else _nn
        self.model, self.optimizer, self._loss, self.schedule = make(way, rank)
        self.state = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}

    def train(self, start: int, end: int) -> None:
        """These steps."""
        for step in range(start, end):
            inputs = np.random.default_rng(step).standard_normal((BATCH, 6), np.float32)
            self.optimizer.zero_grad()
            self._loss(inputs[self._rows]).backward()
            self.optimizer.step()
            self.schedule.step()


def _torch(way: str, rank: int) -> Any:
    import torch
    from support.fsdp_training import Net

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = _wrapped(Net(), way)
    if way == "zero":
        optimizer: Any = tr.DistributedOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    else:
        optimizer = torch.optim.AdamW(_groups(model), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    return (
        model,
        optimizer,
        lambda inputs: model(torch.from_numpy(inputs)).square().mean(),
        schedule,
    )


def _nn(way: str, rank: int) -> Any:
    from torsh_runtime import nn, optim

    layers = [nn.Linear(6, 17), nn.Linear(17, 17), nn.LayerNorm(17), nn.Linear(17, 3)]
    generator = np.random.default_rng(rank)
    for layer in layers:
        for parameter in layer.parameters():
            parameter.data[...] = generator.standard_normal(parameter.shape)
    model = _wrapped(nn.Sequential(*layers), way)
    optimizer = optim.AdamW(_groups(model), lr=0.01)
    schedule = optim.StepLR(optimizer, 3, 0.5)
    return model, optimizer, lambda inputs: (model(nn.Tensor(inputs)) ** 2).mean(), schedule


def _wrapped(model: Any, way: str) -> Any:
    if way in ("ddp", "zero"):
        return tr.DistributedDataParallel(model)
    return tr.FullyShardedDataParallel(model, **_FSDP) if way == "fsdp" else model


def _groups(model: Any) -> Any:
    biases = [each for name, each in model.named_parameters() if name.endswith("bias")]
    others = [each for name, each in model.named_parameters() if not name.endswith("bias")]
    return [{"params": others}, {"params": biases, "weight_decay": 0.0}]


def save(framework: str, way: str, rank: int, ranks: int, directory: Path, steps: int) -> None:
    """Train so many steps and save."""
    training = Training(framework, way, rank, ranks)
    training.train(0, steps)
    Checkpointer(directory).save(steps, training.state)


def load_and_save(
    framework: str, way: str, rank: int, ranks: int, source: Path, target: Path
) -> None:
    """Load, and save the same elsewhere."""
    training = Training(framework, way, rank, ranks)
    loaded = Checkpointer(source).load(training.state)
    assert loaded is not None
    with Checkpointer(target) as checkpointer:
        checkpointer.save(loaded.step, training.state, async_op=True)


def resume(framework: str, way: str, rank: int, ranks: int, directory: Path, steps: int) -> None:
    """Load, train on to this step, and save."""
    training = Training(framework, way, rank, ranks)
    checkpointer = Checkpointer(directory)
    loaded = checkpointer.load(training.state)
    assert loaded is not None
    training.train(loaded.step, steps)
    checkpointer.save(steps, training.state)


def everything(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """All tensors of a checkpoint, whole, and its plain values."""
    from torsh_runtime.parallel.state.plain import decode

    with CheckpointReader(path) as reader:
        tensors = {
            name: decode({"__kept__": "tensor", "name": name, "framework": "numpy"}, None, reader)
            for name in reader.names("")
        }
        return tensors, dict(reader.values)
