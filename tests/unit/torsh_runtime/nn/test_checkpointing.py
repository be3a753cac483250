"""Activation checkpointing: the same gradients with less memory."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from torsh_runtime import nn


def model() -> nn.Sequential:
    nn.manual_seed(1)
    block = nn.TransformerBlock(8, 2, dropout=0.3, causal=True)
    return nn.Sequential(block, nn.TransformerBlock(8, 2, dropout=0.3), block)


def gradients(checkpointed: bool) -> tuple[list[np.ndarray], list[str], np.ndarray]:
    """Of all parameters and the input, the order of the hooks, and numbers drawn afterwards."""
    blocks, order = model(), []
    for name, parameter in blocks.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, m=name: order.append(m))
    x = nn.tensor(np.random.default_rng(0).normal(size=(2, 3, 8)).astype("f"), requires_grad=True)
    y: Any = x
    for block in blocks:
        y = nn.checkpoint(block, y) if checkpointed else block(y)
    assert set(nn.leaves([y])) == {x, *blocks.parameters()}
    (y * y).sum().backward()
    found = [p.grad.data for p in [*blocks.parameters(), x] if p.grad is not None]
    return found, order, nn.randn(3).numpy()


def test_gradients_and_random_numbers_are_those_of_a_plain_run() -> None:
    plain, checkpointed = gradients(False), gradients(True)
    assert len(plain[0]) == len(checkpointed[0]) == 25
    for mine, other in zip(plain[0], checkpointed[0], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
    assert sorted(plain[1]) == sorted(checkpointed[1])
    assert len(set(checkpointed[1])) == len(checkpointed[1])
    assert np.array_equal(plain[2], checkpointed[2])


def test_what_is_computed_within_is_forgotten() -> None:
    kept: list[Any] = []

    def function(x: nn.Tensor) -> nn.Tensor:
        middle = x.exp()
        kept.append(weakref.ref(middle.data))
        return middle * middle

    x = nn.tensor(np.ones(2), requires_grad=True)
    result = nn.checkpoint(function, x)
    assert kept[0]() is None
    result.sum().backward()
    assert len(kept) == 2
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp(2) * np.ones(2))


def test_hooks_of_parameters_within_are_called_once() -> None:
    layer, kept = nn.Linear(1, 1, bias=False), nn.tensor([[7.0]])
    calls: list[float] = []
    layer.weight.register_hook(lambda g: calls.append(g.item()))

    def function(x: nn.Tensor) -> nn.Tensor:
        start = x + 0.0
        start.register_hook(lambda g: kept)
        return layer(start)

    x = nn.tensor([[3.0]], requires_grad=True)
    (nn.checkpoint(function, x) + nn.checkpoint(function, x)).backward()
    assert calls == [6]
    assert x.grad is not None
    assert x.grad.item() == 14
    assert kept.item() == 7


def test_several_arguments_and_results() -> None:
    x, y = (nn.tensor(np.array([v]), requires_grad=True) for v in (2.0, 3.0))
    product, total = nn.checkpoint(lambda a, n, b: (a * b * n, a + b), x, 5, y)
    product.backward()
    assert x.grad is not None
    assert y.grad is not None
    assert (x.grad.item(), y.grad.item()) == (15, 10)
    assert total.item() == 5
    with nn.no_grad():
        assert not nn.checkpoint(lambda a: a * 2, x).requires_grad
    with pytest.raises(TypeError, match="a tensor or a tuple"):
        nn.checkpoint(lambda a: 3, x)
