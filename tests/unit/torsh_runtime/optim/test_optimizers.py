"""Optimizers, schedules and clipping beside torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from torsh_runtime import nn, optim

STEPS = 50
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd decay": ("SGD", {"lr": 0.1, "weight_decay": 0.1}),
    "momentum": ("SGD", {"lr": 0.05, "momentum": 0.9}),
    "dampening": ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "nesterov": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "adam": ("Adam", {}),
    "adam options": (
        "Adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1}
    ),
    "adamw": ("AdamW", {"lr": 0.01}),
    "adamw decay": ("AdamW", {"lr": 0.01, "weight_decay": 0.2, "betas": (0.7, 0.9)}),
}  # fmt: skip
SHAPES = ((3, 4), (5,), (), (200, 300))


def values(seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [np.asarray(generator.normal(0, 1, shape), np.float32) for shape in SHAPES]


def give(params: list[Any], make: Callable[[np.ndarray], Any], seed: int) -> None:
    for param, gradient in zip(params, values(seed), strict=True):
        param.grad = make(gradient)


def groups(params: list[Any]) -> list[dict[str, Any]]:
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.02}]


@pytest.mark.torch
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_torchs_even_by_way_of_its_state(name: str) -> None:
    torch = pytest.importorskip("torch")
    kind, options = OPTIMIZERS[name]
    ours = [nn.Parameter(array) for array in values(0)]
    theirs = [torch.nn.Parameter(torch.from_numpy(array.copy())) for array in values(0)]
    mine = getattr(optim, kind)(groups(ours), **options)
    other = getattr(torch.optim, kind)(groups(theirs), **options)
    for step in range(STEPS):
        give(ours, nn.tensor, step)
        give(theirs, torch.from_numpy, step)
        mine.step()
        other.step()
        if step == STEPS // 2:
            mine, other = swapped(torch, kind, (mine, ours), (other, theirs), options)
    for parameter, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(parameter.data, expected.detach().numpy(), rtol=2e-5, atol=2e-6)


def swapped(
    torch: Any, kind: str, mine: tuple[Any, Any], other: tuple[Any, Any], options: dict[str, Any]
) -> tuple[Any, Any]:
    """New optimizers of both, each with the other one's state."""
    state = mine[0].state_dict()
    as_torch = {
        "state": {
            number: {name: torch.tensor(np.array(value)) for name, value in entries.items()}
            for number, entries in state["state"].items()
        },
        "param_groups": [
            {**theirs, **own}
            for own, theirs in zip(
                state["param_groups"], other[0].state_dict()["param_groups"], strict=True
            )
        ],
    }
    ours = getattr(optim, kind)(groups(mine[1]), **options)
    theirs = getattr(torch.optim, kind)(groups(other[1]), **options)
    ours.load_state_dict(other[0].state_dict())
    theirs.load_state_dict(as_torch)
    return ours, theirs


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_updates_are_in_place(kind: str) -> None:
    bucket = np.ones(10, "f")
    parameter = nn.Parameter(bucket[2:6].reshape(2, 2))
    turned = nn.Parameter(np.ones((3, 2), "f").T)
    optimizer = getattr(optim, kind)([parameter, turned], lr=0.5)
    for each in (parameter, turned):
        each.grad = nn.tensor(np.ones(each.shape, "f"))
    optimizer.step()
    assert (bucket != 1).tolist() == [False] * 2 + [True] * 4 + [False] * 4
    assert (turned.data < 0.6).all()


def test_bfloat16_parameters_have_a_state_of_float32() -> None:
    pytest.importorskip("ml_dtypes")
    parameter = nn.Parameter(nn.tensor(np.ones(4), dtype="bfloat16"))
    optimizer = optim.AdamW([parameter], lr=0.1)
    parameter.grad = nn.tensor(np.ones(4), dtype="bfloat16")
    optimizer.step()
    assert parameter.dtype.name == "bfloat16"
    assert parameter.float().tolist() == pytest.approx([0.9] * 4, abs=0.01)
    assert optimizer.state[parameter]["exp_avg"].dtype == np.float32


def test_a_closure_and_zero_grad() -> None:
    x = nn.tensor(np.array([3.0]), requires_grad=True)
    optimizer = optim.SGD([x], lr=0.1)

    def closure() -> nn.Tensor:
        optimizer.zero_grad()
        loss = (x * x).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 9
    assert x.item() == pytest.approx(2.4)
    optimizer.zero_grad(set_to_none=False)
    assert x.grad is not None
    assert x.grad.item() == 0


def test_what_optimizers_refuse() -> None:
    x = nn.tensor([1.0], requires_grad=True)
    with pytest.raises(ValueError, match="was given none"):
        optim.SGD([])
    with pytest.raises(ValueError, match="one group only"):
        optim.SGD([x, x])
    with pytest.raises(TypeError, match="leaves"):
        optim.SGD([x * 2])
    with pytest.raises(ValueError, match="Nesterov"):
        optim.SGD([x], nesterov=True)
    with pytest.raises(ValueError, match="betas"):
        optim.Adam([x], betas=(1.0, 0.9))
    with pytest.raises(ValueError, match=r"groups of \[2\] parameters.*has \[1\]"):
        optim.SGD([x]).load_state_dict({"state": {}, "param_groups": [{"params": [0, 1]}]})


SCHEDULES: dict[str, Callable[[Any, Any], Any]] = {
    "lambda": lambda n, o: n.LambdaLR(o, lambda step: 1 / (step + 1)),
    "lambdas": lambda n, o: n.LambdaLR(o, [lambda step: 0.9**step, lambda step: 1 + step]),
    "step": lambda n, o: n.StepLR(o, 3, gamma=0.5),
    "cosine": lambda n, o: n.CosineAnnealingLR(o, 10, eta_min=0.01),
    "linear": lambda n, o: n.LinearLR(o, 0.1, 1.0, 6),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_torchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    ours = [nn.Parameter(array) for array in values(0)]
    theirs = [torch.nn.Parameter(torch.from_numpy(array)) for array in values(0)]
    mine, other = optim.SGD(groups(ours), lr=0.3), torch.optim.SGD(groups(theirs), lr=0.3)
    schedule = SCHEDULES[name](optim, mine)
    expected = SCHEDULES[name](torch.optim.lr_scheduler, other)
    for step in range(18):
        assert schedule.get_last_lr() == pytest.approx(expected.get_last_lr())
        other.step()
        schedule.step()
        expected.step()
        if step == 9:
            state = schedule.state_dict()
            schedule = SCHEDULES[name](optim, mine)
            schedule.load_state_dict(state)


@pytest.mark.torch
@pytest.mark.parametrize("kind", [2.0, 1.0, 3.0, float("inf")])
@pytest.mark.parametrize("bound", [0.5, 1e6])
def test_norms_are_clipped_as_torch_does(kind: float, bound: float) -> None:
    torch = pytest.importorskip("torch")
    ours = [nn.Parameter(array) for array in values(0)]
    theirs = [torch.nn.Parameter(torch.from_numpy(array)) for array in values(0)]
    give(ours, nn.tensor, 1)
    give(theirs, torch.from_numpy, 1)
    norm = optim.clip_grad_norm_(ours, bound, kind)
    expected = torch.nn.utils.clip_grad_norm_(theirs, bound, kind)
    assert norm.item() == pytest.approx(expected.item(), rel=1e-5)
    for parameter, other in zip(ours, theirs, strict=True):
        assert parameter.grad is not None
        np.testing.assert_allclose(parameter.grad.data, other.grad.numpy(), rtol=1e-5, atol=1e-7)


def test_values_are_clipped_and_infinite_norms_refused() -> None:
    x = nn.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x.grad = nn.tensor([-9.0, 0.5, np.inf])
    with pytest.raises(RuntimeError, match="inf"):
        optim.clip_grad_norm_([x], 1.0, error_if_nonfinite=True)
    optim.clip_grad_value_([x], 2.0)
    assert x.grad.tolist() == [-2.0, 0.5, 2.0]
    assert optim.clip_grad_norm_([nn.tensor([1.0])], 1.0).item() == 0
