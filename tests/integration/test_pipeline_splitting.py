"""Backward passes in two parts give the gradients of whole ones, and leave weights for later."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from torsh_runtime import nn
from torsh_runtime.parallel.pipeline.autograd import autograd_of

needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")


def both(module: Any, inputs: Any, gradient: Any) -> None:
    """Compare a whole pass with two parts, twice in a row, as gradients are added up."""
    autograd = autograd_of(module)

    def fresh() -> Any:
        wants = "float" in str(inputs.dtype)
        return autograd.leaf(autograd.values(inputs), wants)

    found = []
    for parts in (False, True):
        module.zero_grad()
        for _ in range(2):
            x = fresh()
            with autograd.splitting():
                y = module(x)
            if not parts:
                autograd.backward([y], [gradient])
                continue
            before = [p.grad is None or np.array(p.grad.data) for p in module.parameters()]
            later = autograd.backward_inputs([y], [gradient], [x])
            after = [p.grad is None or np.array(p.grad.data) for p in module.parameters()]
            assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
            later()
        own = [p.grad for p in module.parameters()]
        found.append([np.array(g.data) for g in own + ([x.grad] if x.requires_grad else [])])
    for whole, split in zip(*found, strict=True):
        np.testing.assert_allclose(split, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)), (3, 5)),
        (nn.Linear(5, 4, bias=False), (2, 3, 5)),
        (nn.Conv2d(2, 4, 3, padding=1, stride=2), (3, 2, 6, 6)),
        (nn.Embedding(7, 4), None),
    ],
)
def test_of_nn(module: Any, shape: Any) -> None:
    module.to(np.float64)
    random = np.random.default_rng(0)
    x = random.integers(7, size=(3, 5)) if shape is None else random.standard_normal(shape)
    y = module(nn.Tensor(x))
    both(module, nn.Tensor(x), random.standard_normal(y.shape))


@pytest.mark.torch
@needs_torch
def test_of_torch() -> None:
    import torch

    layers = torch.nn
    cases: list[tuple[Any, Any]] = [
        (layers.Sequential(layers.Linear(5, 6), layers.Tanh(), layers.Linear(6, 4)), (3, 5)),
        (layers.Linear(5, 4, bias=False), (2, 3, 5)),
        (layers.Conv1d(2, 4, 3, padding=1, groups=2), (3, 2, 6)),
        (layers.Conv2d(2, 4, 3, padding=1, stride=2, bias=False), (3, 2, 6, 6)),
        (layers.Conv3d(2, 4, 2, dilation=2), (3, 2, 4, 5, 6)),
        (layers.Embedding(7, 4, padding_idx=2), None),
    ]
    torch.manual_seed(0)
    for module, shape in cases:
        module.double()
        x = torch.randint(7, (3, 5)) if shape is None else torch.randn(shape).double()
        both(module, x, torch.randn_like(module(x)))


@pytest.mark.torch
@needs_torch
def test_what_cannot_be_parted_is_whole() -> None:
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv1d(2, 2, 3, padding="same"), torch.nn.LayerNorm(6))
    autograd = autograd_of(module)
    x = torch.randn(3, 2, 6, requires_grad=True)
    with autograd.splitting():
        y = module(x)
    autograd.backward_inputs([y], [torch.ones_like(y)], [x])
    assert all(p.grad is not None for p in module.parameters())


def doubling() -> Any:
    """A linear layer whose weight counts twice, as one with a scale of its own does."""
    import torch

    class Doubled(torch.nn.Parameter):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                if func is torch.nn.functional.linear:
                    args = (args[0], 2 * args[1], *args[2:])
                return func(*args, **(kwargs or {}))

    layer = torch.nn.Linear(4, 4)
    layer.weight = Doubled(layer.weight.detach())
    return layer


def by_rows() -> Any:
    import torch

    class ByRows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return torch.vmap(lambda row: self.layer(row[None])[0])(x)

    return ByRows()


def along() -> Any:
    import torch

    class Along(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
                return torch.autograd.forward_ad.unpack_dual(self.layer(dual).tanh()).tangent

    return Along()


@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize("make", [doubling, by_rows, along])
def test_calls_that_mean_something_else_have_their_own_gradients(make: Any) -> None:
    import torch

    torch.manual_seed(0)
    module, x = make(), torch.randn(3, 4, requires_grad=True)
    module(x).sum().backward()
    expected = [x.grad, *(p.grad for p in module.parameters())]
    x.grad = None
    module.zero_grad()
    autograd = autograd_of(module)
    with autograd.splitting():
        y = module(x)
    autograd.backward_inputs([y], [torch.ones_like(y)], [x])()
    for found, wanted in zip(
        [x.grad, *(p.grad for p in module.parameters())], expected, strict=True
    ):
        assert torch.equal(found, wanted)


@pytest.mark.torch
@needs_torch
def test_a_mode_around_it_changes_what_a_call_means() -> None:
    import torch
    from torch.overrides import TorchFunctionMode

    class Doubling(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.nn.functional.linear:
                args = (args[0], 2 * args[1], *args[2:])
            return func(*args, **(kwargs or {}))

    module, x = torch.nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True)
    autograd = autograd_of(module)
    with Doubling(), autograd.splitting():
        y = module(x)
    autograd.backward_inputs([y], [torch.ones_like(y)], [x])()
    assert torch.allclose(x.grad, 2 * module.weight.detach().sum(0).expand(2, 4))
    assert torch.equal(module.weight.grad, torch.full((4, 4), 4.0))


@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_a_weight_that_changes_before_its_backward_pass_is_an_error(kind: str) -> None:
    import torch

    module: Any = torch.nn.Linear(4, 4) if kind == "linear" else torch.nn.Conv1d(2, 2, 1)
    x = torch.ones((2, 4) if kind == "linear" else (2, 2, 3), requires_grad=True)
    autograd = autograd_of(module)
    with autograd.splitting():
        y = module(x)
    with torch.no_grad():
        module.weight.mul_(0.9)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        autograd.backward_inputs([y], [torch.ones_like(y)], [x])


@pytest.mark.torch
@needs_torch
def test_values_are_no_lazy_conjugates() -> None:
    import torch

    x = torch.tensor([1 + 2j, 3 - 1j])
    values = autograd_of(torch.nn.Linear(1, 1)).values(x.conj())
    assert values.numpy().tolist() == [1 - 2j, 3 + 1j]
