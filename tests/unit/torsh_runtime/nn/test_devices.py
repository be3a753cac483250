"""Arrays that are not numpy's: every operation calls the functions of the arrays' own module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import strict_cupy
from support.nn_cases import CASES, Case

from torsh_runtime import nn, optim
from torsh_runtime.errors import BackendUnavailable


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    module = strict_cupy.module()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


ON_HOST = ("embedding", "cross_entropy", "masked", "biased", "rows")
"""Cases that bring arrays of their own, which are on the host."""


@pytest.mark.parametrize("case", [c for c in CASES if not c.name.startswith(ON_HOST)], ids=str)
def test_operations_on_the_device_are_those_on_the_host(case: Case, cupy: Any) -> None:
    here = [nn.tensor(array, requires_grad=True) for array in case.inputs("float32")]
    there = [nn.Tensor(cupy.array(x.data), requires_grad=True) for x in here]
    expected, found = case.ours(*here), case.ours(*there)
    assert isinstance(found.data, cupy.ndarray)
    np.testing.assert_array_equal(found.data.get(), expected.data)
    weight = np.random.default_rng(5).normal(0, 1, expected.shape).astype(expected.dtype)
    expected.backward(nn.from_numpy(weight))
    found.backward(nn.Tensor(cupy.array(weight)))
    for mine, other in zip(there, here, strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        np.testing.assert_allclose(mine.grad.data.get(), other.grad.data, rtol=1e-5, atol=1e-6)


def trained(device: str, kind: str) -> dict[str, np.ndarray]:
    nn.manual_seed(3)
    table, norm = nn.Embedding(7, 8), nn.RMSNorm(8)
    model = nn.Sequential(table, nn.TransformerBlock(8, 2, causal=True), norm, nn.Linear(8, 7))
    model.to(device)
    optimizer = getattr(optim, kind)(model.parameters(), lr=0.1, weight_decay=0.1)
    text = nn.from_numpy(np.arange(10).reshape(2, 5) % 7).to(device)
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(text).flatten(0, 1), text.flatten())
        model.zero_grad()
        loss.backward()
        assert optim.clip_grad_norm_(model.parameters(), 0.5).item() > 0.5
        optim.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
    return {name: nn.Tensor(array).numpy() for name, array in model.state_dict().items()}


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_models_are_trained_on_the_device_as_on_the_host(kind: str, cupy: Any) -> None:
    there, here = trained("cuda", kind), trained("cpu", kind)
    for name, array in here.items():
        np.testing.assert_allclose(there[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_states_cross_between_devices_and_random_numbers_are_drawn_there(cupy: Any) -> None:
    here, there = nn.Linear(2, 2), nn.Linear(2, 2).to("cuda")
    there.load_state_dict(here.state_dict())
    here.load_state_dict(there.state_dict())
    assert there.weight.device == "cuda:0"
    assert here.weight.device == "cpu"
    x = there(nn.randn(3, 2).cuda().requires_grad_())
    assert isinstance(nn.functional.dropout(x, 0.5).data, cupy.ndarray)
    moved = nn.tensor([1.0, 2.0], requires_grad=True)
    (moved.cuda() * 2).cpu().sum().backward()
    assert moved.grad is not None
    assert moved.grad.data.tolist() == [2, 2]
    mask = nn.Tensor(cupy.array(np.array([[True, False]])))
    attended = nn.functional.scaled_dot_product_attention(x[:1], x[:2], x[:2], mask)
    assert isinstance(attended.data, cupy.ndarray)


def test_a_gpu_without_cupy_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendUnavailable, match="pip install"):
        nn.Linear(1, 1).to("cuda")
