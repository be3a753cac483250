"""Attention by torch's kernels for GPUs is called as they want it, and merged rightly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support import gpu_attention  # noqa: E402

from torsh_runtime.parallel.context import flash, gpu_kernels  # noqa: E402
from torsh_runtime.parallel.context.gpu_kernels import Efficient, FlashOnGpu  # noqa: E402
from torsh_runtime.parallel.context.kernels import Attention, Columns, Products, merge  # noqa: E402
from torsh_runtime.parallel.context.sequence import Band  # noqa: E402

pytestmark = pytest.mark.torch
SCALE = 0.3
KERNELS = {"flash": FlashOnGpu(Efficient()), "efficient": Efficient()}
DTYPES = {"flash": torch.bfloat16, "efficient": torch.float32}
FAR = {torch.bfloat16: 0.02, torch.float32: 1e-5}
with_each = pytest.mark.parametrize("name", KERNELS)


@pytest.fixture(autouse=True)
def _operators() -> Iterator[None]:
    library = gpu_attention.register()
    yield
    library._destroy()


def operands(queries: int, keys: int, size: int, dtype: Any, kv_heads: int = 4) -> list[Any]:
    """Query, key, value and the gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, queries), (kv_heads, keys), (kv_heads, keys), (4, queries)]
    return [torch.randn(2, *each, size, generator=generator).to(dtype) for each in shapes]


def run(kernel: Any, tensors: list[Any], is_causal: bool, band: Band | None) -> list[Any]:
    *given, gradient = tensors
    block = Attention(*given, is_causal, SCALE, band)
    output, logsumexp = kernel.forward(block)
    whole = output.to(gradient.dtype)
    found = kernel.backward(gradient, block, whole, logsumexp)
    return [output, logsumexp, *found]


def assert_near(found: list[Any], wanted: list[Any], far: float) -> None:
    for each, expected in zip(found, wanted, strict=True):
        assert each.shape == expected.shape
        assert float((each - expected).abs().max()) <= far * float(expected.abs().max())


@with_each
@pytest.mark.parametrize("size", [8, 6, 20])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(
    ("queries", "keys", "is_causal", "band"),
    [
        (33, 33, True, None),
        (1, 1, True, None),
        (40, 7, True, None),
        (10, 21, False, None),
        (21, 30, False, Band(15, 0, 18)),
    ],
)
def test_is_what_products_make(
    name: str, size: int, kv_heads: int, queries: int, keys: int, is_causal: bool, band: Any
) -> None:
    dtype = DTYPES[name]
    tensors = operands(queries, keys, size, dtype, kv_heads)
    found = run(KERNELS[name], tensors, is_causal, band)
    assert {each.dtype for each in found[:2]} == {torch.float32}
    wanted = run(Products(), [each.double() for each in tensors], is_causal, band)
    assert_near(found, wanted, FAR[dtype])


@with_each
def test_views_that_the_kernels_cannot_read_are_copied(name: str) -> None:
    dtype = DTYPES[name]
    joined = torch.randn(2, 9, 3 * 4 * 8 + 1, generator=torch.Generator().manual_seed(0)).to(dtype)
    parts = joined[..., 1:].unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
    turned = parts[0].transpose(-1, -2).contiguous().transpose(-1, -2)
    tensors = [*parts, turned]
    wanted = run(Products(), [each.double() for each in tensors], True, None)
    assert_near(run(KERNELS[name], tensors, True, None), wanted, FAR[dtype])


@with_each
def test_blocks_are_merged_into_attention_to_all(name: str) -> None:
    dtype = DTYPES[name]
    kernel, tensors = KERNELS[name], operands(24, 40, 16, dtype, 2)
    query, key, value, gradient = tensors
    parts = [(key[:, :, at : at + 20], value[:, :, at : at + 20]) for at in (0, 20)]
    blocks = [Attention(query, *part, False, SCALE) for part in parts]
    output, logsumexp = kernel.forward(blocks[0])
    merge(output, logsumexp, *kernel.forward(blocks[1]))
    found = [kernel.backward(gradient, each, output.to(dtype), logsumexp) for each in blocks]
    sums = [found[0][0].float() + found[1][0]]
    sums += [torch.cat(each, 2) for each in list(zip(*found, strict=True))[1:]]
    leaves = [each.double().requires_grad_() for each in tensors[:3]]
    attend = torch.nn.functional.scaled_dot_product_attention
    wanted = attend(*leaves, scale=SCALE, enable_gqa=True)
    wanted.backward(gradient.double())
    assert_near([output, *sums], [wanted.detach(), *(each.grad for each in leaves)], FAR[dtype])


@with_each
def test_parts_of_a_larger_logsumexp_are_taken(name: str) -> None:
    """A rank's late queries are a slice of what has been merged."""
    dtype = DTYPES[name]
    query, key, value, gradient = operands(20, 12, 8, dtype)
    late = slice(8, None)
    whole = Products().forward(Attention(query, key, value, False, SCALE))
    output, logsumexp = (each[:, :, late] for each in whole)
    given = gradient[:, :, late], query[:, :, late], key, value
    found = _backward(KERNELS[name], *given, output.to(dtype), logsumexp)
    doubles = (each.double() for each in (*given, output, logsumexp))
    assert_near(list(found), list(_backward(Products(), *doubles)), FAR[dtype])


def _backward(kernel: Any, gradient: Any, query: Any, key: Any, value: Any, *merged: Any) -> Any:
    return kernel.backward(gradient, Attention(query, key, value, False, SCALE), *merged)


@with_each
def test_torchs_shape_functions_take_the_same_calls(name: str) -> None:
    tensors = [each.to("meta") for each in operands(33, 33, 20, DTYPES[name], 2)]
    shapes = [each.shape for each in run(KERNELS[name], tensors, True, None)]
    assert shapes == [(2, 4, 33, 20), (2, 4, 33), *(each.shape for each in tensors[:3])]


def test_a_logsumexp_is_padded_so_that_no_weight_falls_on_the_padding() -> None:
    query, key, value, _ = operands(5, 5, 8, torch.float32)
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    assert efficient(query, key, value, None, True, scale=SCALE)[1][..., 5:].eq(math.inf).all()
    assert Efficient().forward(Attention(query, key, value, False, SCALE))[1].shape == (2, 4, 5)


def chosen(monkeypatch: Any, flashes: bool, efficient: bool, value_size: int = 6) -> Any:
    asked: list[Any] = []
    answers = {"can_use_flash_attention": flashes, "can_use_efficient_attention": efficient}
    for name, answer in answers.items():
        monkeypatch.setattr(
            gpu_kernels, name, lambda given, answer=answer: asked.append(given) or answer
        )
    query = torch.empty(2, 4, 9, 6, dtype=torch.bfloat16, device="meta")
    value = torch.empty(2, 4, 9, value_size, dtype=torch.bfloat16, device="meta")
    found = flash.kernel_for(query, value)
    for each in asked:
        assert each.query.shape[-1] == 8
        assert each.query.dtype is torch.bfloat16
        assert each.query.device.type == "meta"
    return found


def test_torch_says_which_kernel_a_device_has(monkeypatch: pytest.MonkeyPatch) -> None:
    both: Any = chosen(monkeypatch, True, True)
    assert isinstance(both, FlashOnGpu)
    assert isinstance(both._others, Efficient)
    alone: Any = chosen(monkeypatch, True, False)
    assert isinstance(alone._others, Products)
    assert isinstance(chosen(monkeypatch, False, True), Efficient)
    assert isinstance(chosen(monkeypatch, True, True, value_size=4), Efficient)
    assert chosen(monkeypatch, False, False) is None


def test_cpus_keep_their_kernel() -> None:
    query = torch.empty(2, 4, 9, 6)
    assert isinstance(flash.kernel_for(query, query), Columns)
    assert flash.kernel_for(query, query[..., :4]) is None
    assert gpu_kernels.kernel_for(query, query) is None
