"""Checkpoints of unusual models of torch, and of its optimizers, by one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torsh_runtime.checkpoint import Checkpointer  # noqa: E402
from torsh_runtime.errors import CheckpointError  # noqa: E402

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


class Counting(torch.nn.Module):
    """A module with more state than tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self.seen: dict[str, Any] = {"calls": 0, "range": torch.zeros(2)}

    def get_extra_state(self) -> Any:
        return self.seen

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


def test_extra_state_of_modules_is_kept(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Counting())
    model[1].seen = {"calls": 7, "range": torch.tensor([1.0, 2.0])}
    Checkpointer(tmp_path).save(1, {"model": model})
    other = torch.nn.Sequential(torch.nn.Linear(2, 2), Counting())
    Checkpointer(tmp_path).load({"model": other})
    assert other[1].seen["calls"] == 7
    assert torch.equal(other[1].seen["range"], torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(other[1].inner.weight, model[1].inner.weight)
    plain = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Module())
    plain[1].inner = torch.nn.Linear(2, 2)
    Checkpointer(tmp_path).save(2, {"model": plain})
    with pytest.raises(CheckpointError, match=r"nothing was kept as .model/1\._extra_state."):
        Checkpointer(tmp_path).load({"model": other})
    model[1].seen = {"calls": object()}
    with pytest.raises(CheckpointError, match=r"model/1\._extra_state/calls is a builtins\.object"):
        Checkpointer(tmp_path).save(3, {"model": model})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_floating_tensors_are_cast_to_the_models_dtype(dtype: Any, tmp_path: Path) -> None:
    def make(kind: Any) -> tuple[Any, Any]:
        model = torch.nn.Linear(3, 4).to(kind)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    model, optimizer = make(torch.float32)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    Checkpointer(tmp_path).save(1, {"model": model, "optimizer": optimizer})
    other, its_optimizer = make(dtype)
    other.weight = torch.nn.Parameter(other.weight.detach().t().contiguous().t())  # not in place
    its_optimizer = torch.optim.AdamW(other.parameters(), lr=0.1)
    Checkpointer(tmp_path).load({"model": other, "optimizer": its_optimizer})
    expected = torch.nn.Linear(3, 4).to(dtype)
    expected.load_state_dict(model.state_dict())
    assert torch.equal(other.weight, expected.weight)
    assert its_optimizer.state[other.weight]["exp_avg"].dtype == dtype
    Checkpointer(tmp_path).save(2, {"model": other})
    back, _ = make(torch.float32)
    Checkpointer(tmp_path).load({"model": back})
    assert torch.equal(back.weight, expected.weight.float())


def test_what_is_not_floating_is_not_cast(tmp_path: Path) -> None:
    model = torch.nn.BatchNorm1d(2)
    Checkpointer(tmp_path).save(1, {"model": model})
    model.num_batches_tracked = model.num_batches_tracked.float()
    with pytest.raises(CheckpointError, match="num_batches_tracked' is int64 of shape"):
        Checkpointer(tmp_path).load({"model": model})
    before = torch.full((2,), 5.0)
    model.running_mean.copy_(before)
    with pytest.raises(CheckpointError):
        Checkpointer(tmp_path).load({"model": model})
    assert torch.equal(model.running_mean, before)  # a misfit changes nothing
