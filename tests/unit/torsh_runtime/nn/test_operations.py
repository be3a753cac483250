"""Every operation beside torch's; and gradients beside difference quotients."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from support.nn_cases import CASES, Case

from torsh_runtime import nn

TOLERANCE = {"float32": {"rtol": 3e-5, "atol": 2e-5}, "float64": {"rtol": 1e-10, "atol": 1e-12}}


def ours(case: Case, inputs: list[np.ndarray], weight: Any = None) -> tuple[np.ndarray, list[Any]]:
    """The result, and the gradients of its sum weighted by `weight`."""
    tensors = [nn.tensor(array, requires_grad=True) for array in inputs]
    result = case.ours(*tensors)
    if weight is not None:
        result.backward(nn.from_numpy(weight))
    return result.data, [None if t.grad is None else t.grad.data for t in tensors]


def weights(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.random.default_rng(5).normal(0, 1, shape).astype(dtype)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients_are_torchs(case: Case, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    inputs = case.inputs(dtype)
    tensors = [torch.tensor(array, requires_grad=True) for array in inputs]
    with warnings.catch_warnings(action="ignore"):
        expected = case.theirs(torch, *tensors)
    weight = weights(tuple(expected.shape), expected.detach().numpy().dtype)
    expected.backward(torch.from_numpy(weight))
    result, gradients = ours(case, inputs, weight)
    assert result.dtype == expected.detach().numpy().dtype
    np.testing.assert_allclose(result, expected.detach().numpy(), **TOLERANCE[dtype])
    for tensor, gradient in zip(tensors, gradients, strict=True):
        assert gradient.dtype == dtype
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), **TOLERANCE[dtype])


@pytest.mark.parametrize("case", [case for case in CASES if case.smooth], ids=str)
def test_gradients_are_difference_quotients(case: Case) -> None:
    inputs = case.inputs("float64")
    weight = weights(ours(case, inputs)[0].shape, "float64")
    _, gradients = ours(case, inputs, weight)
    direction = [np.random.default_rng(7).normal(0, 1, array.shape) for array in inputs]

    def value(step: float) -> float:
        moved = [array + step * d for array, d in zip(inputs, direction, strict=True)]
        result, _ = ours(case, moved)
        return float((result * weight).sum()) if result.shape == weight.shape else np.nan

    step = 1e-6
    quotient = (value(step) - value(-step)) / (2 * step)
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True))
    assert slope == pytest.approx(quotient, rel=1e-5, abs=1e-6)
