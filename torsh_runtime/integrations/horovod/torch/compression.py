"""Compression of gradients: none, or in half precision."""

from __future__ import annotations

from typing import Any, Protocol

import torch

Tensor = torch.Tensor


class Compressor(Protocol):
    """What DistributedOptimizer and the reductions take as `compression`."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """What is sent in the tensor's place, and what decompress() needs."""

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """The tensor, from what came."""


class NoneCompressor:
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, None]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: None) -> Tensor:
        """The tensor itself."""
        return tensor


class FP16Compressor:
    """Sends floating-point tensors in half precision."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """In float16, and the dtype that it had."""
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype) -> Tensor:
        """In the dtype that it had."""
        return tensor.to(ctx)


class Compression:
    """The compressors by name."""

    none = NoneCompressor
    fp16 = FP16Compressor
