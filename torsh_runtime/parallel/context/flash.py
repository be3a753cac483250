"""Computes attention to one block by torch's kernel for CPUs."""

from __future__ import annotations

from typing import Any

import torch

from torsh_runtime.parallel.context.kernels import Attention, Columns, Kernel, hidden

Tensor = torch.Tensor
_forward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def kernel_for(query: Tensor, value: Tensor) -> Kernel[Any] | None:
    """Return the fused kernel for such tensors; None if torch has none for them."""
    if query.device.type != "cpu":
        from torsh_runtime.parallel.context import gpu_kernels

        return gpu_kernels.kernel_for(query, value)
    if query.dtype in _DTYPES and query.shape[-1] == value.shape[-1]:
        return Columns(Flash(), Flash.in_columns)
    return None


class Flash(Kernel[Tensor]):
    """FlashAttention-2 (Dao, 2023) as torch has it: no matrix of all scores is made. The operators
    behind torch's scaled_dot_product_attention are used as they are.
    """

    in_columns = range(257, 1281)
    """Lengths of causal attention that Columns make faster: of each 512 keys the kernel computes
    all or none.
    """

    def forward(self, block: Attention[Tensor]) -> tuple[Tensor, Tensor]:
        operands = map(_solid, (block.query, block.key, block.value))
        output, logsumexp = _forward(
            *operands, 0.0, block.is_causal, attn_mask=_mask(block), scale=block.scale
        )
        return output.to(logsumexp.dtype), logsumexp

    def backward(
        self, gradient: Tensor, block: Attention[Tensor], output: Tensor, logsumexp: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        operands = map(_solid, (gradient, block.query, block.key, block.value, output))
        how = logsumexp, 0.0, block.is_causal
        found: tuple[Tensor, Tensor, Tensor] = _backward(
            *operands, *how, attn_mask=_mask(block), scale=block.scale
        )
        return found


def _solid(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _mask(block: Attention[Tensor]) -> Tensor | None:
    """Return a mask to add to scores, (1, 1, queries, keys)."""
    if block.band is None:
        return None
    found: Any = hidden(block.query, block.query.shape[2], block.key.shape[2], block.band)
    mask: Tensor = found[None, None]
    return mask
