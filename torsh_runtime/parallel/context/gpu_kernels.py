"""Computes attention to one block by torch's fused kernels for GPUs: no matrix of all scores is
made.

The operators behind torch's scaled_dot_product_attention are used as they are. Their backward
passes take the output and the logsumexp of all blocks together. Memory is laid out as their
kernels read it: sizes of heads are padded with zeros, which add nothing to scores and values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.backends.cuda import (
    SDPAParams,
    can_use_efficient_attention,
    can_use_flash_attention,
)
from torch.nn.functional import pad

from torsh_runtime.parallel.context.kernels import Attention, Kernel, Products, hidden

Tensor = torch.Tensor
_aten: Any = torch.ops.aten
_HEAD, _BIAS, _LOGSUMEXP = 8, 16, 32
"""Sizes of heads, rows of a bias and rows of a logsumexp are multiples of these elements."""


def kernel_for(query: Tensor, value: Tensor) -> Kernel[Tensor] | None:
    """Return the kernel for such tensors; None if torch has none for them on their device.

    torch itself answers, by the device, the dtype, the size of heads, and what the program allows
    with torch.nn.attention.sdpa_kernel().
    """
    like = _aligned(query[:1, :1, :1])
    is_masked = _can(can_use_efficient_attention, like)
    if query.shape[-1] == value.shape[-1] and _can(can_use_flash_attention, like):
        return FlashOnGpu(Efficient() if is_masked else Products())
    return Efficient() if is_masked else None


def _can(use: Callable[[Any], bool], like: Tensor) -> bool:
    parameters: Any = SDPAParams  # torch 2.5 and later also ask whether keys have fewer heads
    more = (False,) if hasattr(parameters, "enable_gqa") else ()
    return use(parameters(like, like, like, None, 0.0, False, *more))


class FlashOnGpu(Kernel[Tensor]):
    """FlashAttention-2 (Dao, 2023) in 16 bits. Keys may have fewer heads than queries."""

    def __init__(self, others: Kernel[Any]) -> None:
        """Take the kernel for what this one cannot compute, such as bands."""
        self._others = others

    def forward(self, block: Attention[Tensor]) -> tuple[Tensor, Tensor]:
        if not _is_square(block):
            return self._others.forward(block)
        operands = map(_aligned, (block.query, block.key, block.value))
        output, logsumexp, *_ = _aten._scaled_dot_product_flash_attention(
            *operands, 0.0, block.is_causal, False, scale=block.scale
        )
        return output[..., : block.value.shape[-1]].to(logsumexp.dtype), logsumexp

    def backward(
        self, gradient: Tensor, block: Attention[Tensor], output: Tensor, logsumexp: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        if not _is_square(block):
            return self._others.backward(gradient, block, output, logsumexp)
        query, key, value = block.query, block.key, block.value
        given = gradient, query, key, value, output
        found = _aten._scaled_dot_product_flash_attention_backward(
            *(_aligned(each.to(query.dtype)) for each in given),
            logsumexp.contiguous(),
            None,  # of sequences of several lengths
            None,
            query.shape[2],
            key.shape[2],
            0.0,
            block.is_causal,
            query.new_empty(2, dtype=torch.uint64),  # of dropout, of which there is none
            query.new_empty((), dtype=torch.uint64),
            scale=block.scale,
        )
        return _cut(found, query, key, value)


def _is_square(block: Attention[Tensor]) -> bool:
    """Return whether flash attention computes the block: its causal attention lets the last query
    look at the last key, so there must be as many keys as queries.
    """
    is_uneven = block.query.shape[2] != block.key.shape[2]
    return block.band is None and not (block.is_causal and is_uneven)


class Efficient(Kernel[Tensor]):
    """Memory-efficient attention (Rabe and Staats, 2021), which also takes float32 and masks."""

    def forward(self, block: Attention[Tensor]) -> tuple[Tensor, Tensor]:
        output, logsumexp, *_ = _aten._scaled_dot_product_efficient_attention(
            *map(_aligned, _for_each_head(block)),
            _bias(block),
            True,
            0.0,
            block.is_causal,
            scale=block.scale,
        )
        output = output[..., : block.value.shape[-1]].to(logsumexp.dtype)
        return output, logsumexp[..., : block.query.shape[2]]

    def backward(
        self, gradient: Tensor, block: Attention[Tensor], output: Tensor, logsumexp: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = block.query, block.key, block.value
        given = gradient, *_for_each_head(block)
        rows = -logsumexp.shape[-1] % _LOGSUMEXP
        for_query, for_key, for_value, _ = _aten._scaled_dot_product_efficient_attention_backward(
            *(_aligned(each.to(query.dtype)) for each in given),
            _bias(block),
            _by_token(_aligned(output.to(query.dtype))),
            pad(logsumexp, (0, rows), value=math.inf).contiguous(),
            query.new_empty((), dtype=torch.int64),  # of dropout, of which there is none
            query.new_empty((), dtype=torch.int64),
            0.0,
            [True, True, True, False],
            block.is_causal,
            scale=block.scale,
        )
        found = for_query, _summed(for_key, key), _summed(for_value, value)
        return _cut(found, query, key, value)


def _aligned(tensor: Tensor) -> Tensor:
    """Return a tensor (batch, heads, tokens, size) whose rows the kernels can read."""
    if extra := -tensor.shape[-1] % _HEAD:
        return pad(tensor, (0, extra))
    starts = tensor.storage_offset(), *tensor.stride()[:-1]
    if tensor.stride(-1) == 1 and not any(start % _HEAD for start in starts):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _by_token(tensor: Tensor) -> Tensor:
    """Return a tensor whose tokens are in memory one behind the other, each with its heads."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _for_each_head(block: Attention[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the operands of a block, with keys and values for each head of the query."""
    query = block.query
    return query, _repeated(block.key, query), _repeated(block.value, query)


def _repeated(tensor: Tensor, query: Tensor) -> Tensor:
    """Return keys or values for each head of the query."""
    several = query.shape[1] // tensor.shape[1]
    return tensor if several == 1 else tensor.repeat_interleave(several, 1)


def _summed(gradient: Tensor, like: Tensor) -> Tensor:
    """Return the gradient of what _repeated() was given."""
    heads = like.shape[1]
    if gradient.shape[1] == heads:
        return gradient
    batch, _, *rest = gradient.shape
    return gradient.reshape(batch, heads, -1, *rest).sum(2, dtype=torch.float32)


def _bias(block: Attention[Tensor]) -> Tensor | None:
    """Return what is added to scores, (batch, heads, queries, keys), with aligned rows."""
    if block.band is None:
        return None
    query, queries, keys = block.query, block.query.shape[2], block.key.shape[2]
    mask: Any = hidden(query, queries, keys, block.band)
    found: Tensor = pad(mask, (0, -keys % _BIAS))[:, :keys]
    return found.expand(*query.shape[:2], queries, keys)


def _cut(found: Any, *like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients without the padding of heads."""
    query, key, value = (
        each[..., : tensor.shape[-1]] for each, tensor in zip(found, like, strict=True)
    )
    return query, key, value
