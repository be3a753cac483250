"""Causal attention in columns is that of the kernel alone, and computes less."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from torsh_runtime.parallel.context.kernels import Attention, Columns, Kernel, Products
from torsh_runtime.parallel.operations import cast

needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
HEADS, SIZE, SCALE = 4, 8, 0.3
Arrays = list[np.ndarray[Any, Any]]


def operands(queries: int, keys: int, kv_heads: int) -> Arrays:
    """Query, key, value, and the gradient of the output."""
    random = np.random.default_rng(0)
    shapes = [(HEADS, queries), (kv_heads, keys), (kv_heads, keys), (HEADS, queries)]
    return [random.normal(size=(2, *shape, SIZE)) for shape in shapes]


def run(kernel: Kernel, arrays: list[Any], is_causal: bool) -> list[Any]:
    *operands, gradient = arrays
    block = Attention(*operands, is_causal, SCALE)
    output, logsumexp = kernel.forward(block)
    whole = cast(output, gradient.dtype)
    found = kernel.backward(gradient, block, whole, logsumexp)
    return [output, logsumexp, *found]


class Counting(Products):
    """How many scores are computed."""

    scores = 0

    def forward(self, block: Attention[Any]) -> Any:
        self.scores += block.query.shape[2] * block.key.shape[2]
        return super().forward(block)


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("length", [1, 2, 5, 8, 11, 64])
def test_is_what_products_make(length: int, kv_heads: int) -> None:
    arrays = operands(length, length, kv_heads)
    found = run(Columns(Products(), range(100)), arrays, True)
    for each, expected in zip(found, run(Products(), arrays, True), strict=True):
        np.testing.assert_allclose(each, expected, rtol=0, atol=1e-13)


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize("length", [3, 257, 515, 1024, 1200])
def test_is_what_torchs_kernel_makes(length: int) -> None:
    import torch

    from torsh_runtime.parallel.context.flash import Flash

    arrays = [torch.from_numpy(each) for each in operands(length, length, HEADS)]
    found = run(Columns(Flash(), range(2000)), arrays, True)
    for each, expected in zip(found, run(Flash(), arrays, True), strict=True):
        torch.testing.assert_close(each, expected, rtol=0, atol=1e-13)


def test_a_query_looks_at_keys_up_to_its_own_where_there_are_fewer() -> None:
    query, key, value, _ = operands(6, 3, HEADS)
    output, _ = Products().forward(Attention(query, key, value, True, SCALE))
    np.testing.assert_allclose(output[:, :, 0], value[:, :, 0])
    without = Products().forward(Attention(query[:, :, 2:], key, value, False, SCALE))[0]
    np.testing.assert_allclose(output[:, :, 2:], without)


def test_less_is_computed() -> None:
    kernel = Counting()
    run(Columns(kernel, range(100)), operands(64, 64, HEADS), True)
    assert kernel.scores == 64 * 64 * 5 // 8


@pytest.mark.parametrize(("queries", "is_causal"), [(9, False), (9, True), (200, True)])
def test_others_are_left_to_the_kernel(queries: int, is_causal: bool) -> None:
    arrays = operands(queries, queries, HEADS)
    lengths = range(9) if is_causal and queries < 100 else range(100)
    found = run(Columns(Products(), lengths), arrays, is_causal)
    for each, expected in zip(found, run(Products(), arrays, is_causal), strict=True):
        assert (each == expected).all()


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize("name", ["Flash", "Products"])
@pytest.mark.parametrize("length", [40, 512])
def test_16_bits_are_computed_with_in_more(name: str, length: int) -> None:
    import torch

    from torsh_runtime.parallel.context.flash import Flash

    kernel = {"Flash": Flash, "Products": Products}[name]()
    exact = [torch.from_numpy(each) for each in operands(length, length, HEADS)]
    small = [each.bfloat16() for each in exact]
    found = run(Columns(kernel, range(512, 513)), small, True)
    assert {each.dtype for each in found[:2]} == {torch.float32}
    wanted = run(Products(), [each.double() for each in small], True)
    for each, expected in zip(found, wanted, strict=True):
        assert float((each - expected).abs().max()) < 0.02 * float(expected.abs().max())
    assert float((found[1] - wanted[1]).abs().max()) < 1e-3


def test_half_precision_of_numpy_is_computed_with_in_more() -> None:
    small = [each.astype(np.float16) for each in operands(64, 64, HEADS)]
    found = run(Columns(Products(), range(100)), small, True)
    assert {each.dtype for each in found[:2]} == {np.dtype(np.float32)}
    wanted = run(Products(), [each.astype(float) for each in small], True)
    for each, expected in zip(found, wanted, strict=True):
        assert np.abs(each - expected).max() < 1e-3 * np.abs(expected).max()
