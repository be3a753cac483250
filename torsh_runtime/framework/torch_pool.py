"""Pools of GPU memory, by torch's allocator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class TorchPool:
    """Represents memory of one GPU that torch's allocator gives to nothing else."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = torch.cuda.MemPool()

    def allocate(self, values: Tensor) -> None:
        """Give values that have no memory some of the pool."""
        with torch.cuda.use_mem_pool(self._pool, self._device):
            values.untyped_storage().resize_(values.nbytes)

    def address(self, values: Tensor) -> int:
        """Return the address of the values."""
        return values.data_ptr()

    def segment_of(self, values: Tensor) -> tuple[int, int]:
        """Return address and bytes of the memory that the allocator got at once, and in which the
        values are."""
        place = values.data_ptr()
        segments: list[dict[str, Any]] = self._pool.snapshot()
        for segment in segments:
            start, size = int(segment["address"]), int(segment["total_size"])
            if start <= place < start + size:
                return start, size
        raise RuntimeError("torch's allocator does not know memory that it has allocated")
