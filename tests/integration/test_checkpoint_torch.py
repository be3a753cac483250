"""Checkpoints of unusual models of torch, and of its optimizers, by one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torsh_runtime.checkpoint import Checkpointer  # noqa: E402

pytestmark = pytest.mark.torch


class Unusual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 3)
        self.tied = torch.nn.Linear(4, 3)
        self.tied.weight = self.first.weight
        self.frozen = torch.nn.Linear(3, 3).requires_grad_(False)
        self.norm = torch.nn.BatchNorm1d(3)
        self.lasting = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.scalar = torch.nn.Parameter(torch.tensor(2.0))
        self.empty = torch.nn.Parameter(torch.zeros(0, 3))
        self.low = torch.nn.Parameter(torch.randn(5).bfloat16())
        self.turned = torch.nn.Parameter(torch.randn(4, 6).t())
        self.register_buffer("passing", torch.ones(2), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.frozen(self.first(inputs) + self.tied(inputs))) * self.scalar
        others = self.low.float().sum() + self.turned.square().sum() + self.empty.sum()
        return hidden.square().sum() + others + self.lasting(torch.ones(1, 3, 5, 5)).sum()


OPTIMIZERS: dict[str, Any] = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "AdamW": partial(torch.optim.AdamW, amsgrad=True),
    "rate in a tensor": lambda p: torch.optim.Adam(p, torch.tensor(0.1), foreach=False),
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": partial(torch.optim.RMSprop, centered=True),
    "Adadelta": torch.optim.Adadelta,
}


def training(name: str) -> tuple[Any, Any]:
    model = Unusual()
    return model, OPTIMIZERS[name]([p for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    model, optimizer = training(name)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).backward()
        optimizer.step()
    Checkpointer(tmp_path).save(1, {"model": model, "optimizer": optimizer})
    other, other_optimizer = training(name)
    Checkpointer(tmp_path).load({"model": other, "optimizer": other_optimizer})
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[key]), key
    assert other.tied.weight is other.first.weight
    first, second = optimizer.state_dict(), other_optimizer.state_dict()
    assert repr(first["param_groups"]) == repr(second["param_groups"])
    assert first["state"].keys() == second["state"].keys()
    for number, values in first["state"].items():
        assert values.keys() == second["state"][number].keys()
        for key, value in values.items():
            found = second["state"][number][key]
            assert repr(found) == repr(value), (number, key)
            assert not torch.is_tensor(value) or torch.equal(found, value)
