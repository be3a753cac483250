"""Trainings with all that has a state beside models and optimizers; each function is one rank's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

import torsh_runtime as tr
from torsh_runtime.checkpoint import Checkpointer, PerRank
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.elastic.commits import Commits

BATCH = 12
STOP, END = 5, 10
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "MultiStepLR": lambda o: schedules.MultiStepLR(o, [3, 6, 6]),
    "SequentialLR": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, total_iters=3), schedules.CosineAnnealingLR(o, 10)], [6]
    ),
    "ChainedScheduler": lambda o: schedules.ChainedScheduler(
        [schedules.ConstantLR(o, total_iters=7), schedules.ExponentialLR(o, 0.9)], o
    ),
    "ReduceLROnPlateau": lambda o: schedules.ReduceLROnPlateau(o, patience=1),
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, 0.1, 20),
    "CyclicLR": lambda o: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda step: 0.9**step),
    "CosineAnnealingWarmRestarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 4),
}


class Noise:
    """torch's random numbers, of which each rank has others."""

    def state_dict(self) -> Any:
        return {"torch": torch.get_rng_state()}

    def load_state_dict(self, state: Any) -> None:
        torch.set_rng_state(state["torch"])


class Training:
    """A wrapped model with dropout and a small model for each kind of schedule."""

    def __init__(self, way: str, rank: int, ranks: int) -> None:
        torch.manual_seed(rank)
        wrap: Any = tr.DistributedDataParallel if way == "ddp" else tr.FullyShardedDataParallel
        self._rows = slice(BATCH // ranks * rank, BATCH // ranks * (rank + 1))
        layers = nn.Linear(6, 16), nn.Dropout(0.1), nn.Linear(16, 2)
        self.model: Any = wrap(nn.Sequential(*layers))
        small = nn.ModuleDict({name: nn.Linear(1, 1, bias=False) for name in SCHEDULES})
        self.optimizers = {
            name: torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
            for name, own in {**small, "all": self.model}.items()
        }
        self.schedules = {name: make(self.optimizers[name]) for name, make in SCHEDULES.items()}
        self.schedules["all"] = schedules.MultiStepLR(self.optimizers["all"], [3, 6])
        self.scaler = tr.ShardedGradScaler(init_scale=1024.0, growth_interval=3)
        self.torchs = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
        self.state: dict[str, Any] = {"scaler": self.scaler, "noise": PerRank(Noise())}
        self.state["torch's scaler"] = self.torchs
        self.state |= {"model": self.model, "small": small}
        self.state |= {f"{name} optimizer": each for name, each in self.optimizers.items()}
        self.state |= {f"{name} schedule": each for name, each in self.schedules.items()}

    def train(self, start: int, end: int) -> list[Any]:
        """These steps: rates and scales of each, and what the model is like then."""
        told: list[Any] = []
        for step in range(start, end):
            self._step(step)
            told += [self.scaler.get_scale(), self.torchs.get_scale()]
            told += [each.param_groups[0]["lr"] for each in self.optimizers.values()]
        return [told, [each.numpy().copy() for each in self.model.state_dict().values()]]

    def _step(self, step: int) -> None:
        inputs = np.random.default_rng(step).standard_normal((BATCH, 6), np.float32)
        optimizer = self.optimizers["all"]
        optimizer.zero_grad()
        loss = self.model(torch.from_numpy(inputs[self._rows])).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()
        for name, schedule in self.schedules.items():
            if name != "all":
                (parameter,) = self.optimizers[name].param_groups[0]["params"]
                parameter.grad = torch.ones_like(parameter)
                self.torchs.scale(parameter.detach())
                self.torchs.step(self.optimizers[name])
            schedule.step(*([1.0] if name == "ReduceLROnPlateau" else []))
        self.torchs.update()


def go_on(
    way: str, rank: int, ranks: int, directory: Path, memory: dict[str, str]
) -> dict[str, Any]:
    """How the training ends: undisturbed, from a checkpoint, and from a commit."""
    first = Training(way, rank, ranks)
    first.train(0, STOP)
    Checkpointer(directory).save(STOP, first.state)
    commits = Commits(Ranks.of(None), memory)
    commits.commit(first.state)
    ends = {"undisturbed": first.train(STOP, END)}
    other = Training(way, rank, ranks)
    Checkpointer(directory).load(other.state)
    ends["checkpoint"] = other.train(STOP, END)
    milestones = other.schedules["MultiStepLR"].milestones
    assert type(milestones) is type(first.schedules["MultiStepLR"].milestones), milestones
    other.schedules["MultiStepLR"].step(9)  # by the closed form, which counts them
    other = Training(way, rank, ranks)
    assert commits.restore(other.state) is not None
    ends["commit"] = other.train(STOP, END)
    return ends


def load_elsewhere(way: str, rank: int, ranks: int, directory: Path) -> list[Any]:
    """Rates and scales that follow there."""
    training = Training(way, rank, ranks)
    Checkpointer(directory).load(training.state)
    return training.train(STOP, END)[0]


def differing(rank: int, directory: Path, memory: dict[str, str]) -> list[str]:
    """What is said of a schedule, and of another thing, of which ranks have made other calls."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    schedule = schedules.ReduceLROnPlateau(optimizer)
    torch.manual_seed(0)
    checkpointer, commits = Checkpointer(directory), Commits(Ranks.of(None), memory)
    state = {"schedule": schedule, "noise": Noise()}
    checkpointer.save(1, state)
    said = []
    for call in (lambda: torch.rand(rank), lambda: schedule.step(1.0 + rank)):
        call()
        for keep in (lambda: checkpointer.save(2, state), lambda: commits.commit(state)):
            try:
                keep()
            except tr.CheckpointError as error:
                said.append(str(error))
        state["noise"] = PerRank(Noise())
    return said


def values_of_ranks(rank: int, directory: Path, memory: dict[str, str]) -> list[Any]:
    """Arrays and a model's buffers that ranks have differently, as they come back."""
    model = tr.FullyShardedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    model(torch.full((2, 4), float(rank)))
    arrays = [np.full(3, rank + 10.0 * n) for n in range(4)]
    buffers = [each.clone() for each in model.buffers()]
    state = {"model": model, "arrays": arrays, "number": rank}
    Checkpointer(directory).save(1, state)
    commits = Commits(Ranks.of(None), memory)
    commits.commit(state)
    found: list[Any] = []
    for call in (lambda: _loaded(directory, state), lambda: commits.restore(state)):
        values = call()
        found.append((values, [each.clone().numpy() for each in model.buffers()]))
    return [(arrays, [each.numpy() for each in buffers]), *found]


def _loaded(directory: Path, state: dict[str, Any]) -> Any:
    loaded = Checkpointer(directory).load(state)
    assert loaded is not None
    return loaded.values
