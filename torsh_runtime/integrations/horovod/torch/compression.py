"""Compresses gradients to half precision, or not at all."""

from __future__ import annotations

from typing import Any, Protocol

import torch

Tensor = torch.Tensor


class Compressor(Protocol):
    """Describes the classes that DistributedOptimizer and the reductions take as `compression`."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Return the tensor to send, and the context that decompress() needs."""

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Return the tensor restored from the received one."""


class NoneCompressor:
    """Sends tensors without any change."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, None]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: None) -> Tensor:
        """Return the tensor itself."""
        return tensor


class FP16Compressor:
    """Sends floating-point tensors in half precision."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """Return a floating-point tensor in float16, others unchanged, and the original dtype."""
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype) -> Tensor:
        """Return the tensor in its original dtype."""
        return tensor.to(ctx)


class Compression:
    """Holds the compressors by name."""

    none = NoneCompressor
    fp16 = FP16Compressor
