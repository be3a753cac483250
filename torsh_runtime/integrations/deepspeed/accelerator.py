"""get_accelerator(): the device that a rank computes on, by the names of DeepSpeed's."""

from __future__ import annotations

import torch

__all__ = ["Accelerator", "get_accelerator"]


class Accelerator:
    """A GPU for each rank of a node if torch has some, and else the processor."""

    def __init__(self) -> None:
        self._has_gpus = torch.cuda.is_available()

    def is_available(self) -> bool:
        """Whether there is one."""
        return True

    def device_name(self, device_index: int | None = None) -> str:
        """Such as "cuda:1"; "cpu"."""
        if not self._has_gpus:
            return "cpu"
        return "cuda" if device_index is None else f"cuda:{device_index}"

    def current_device_name(self) -> str:
        """That of the device that was set."""
        return self.device_name(self.current_device() if self._has_gpus else None)

    def current_device(self) -> int:
        """The number of the device that was set; 0 for the processor."""
        return torch.cuda.current_device() if self._has_gpus else 0

    def set_device(self, device_index: int) -> None:
        """Compute on this GPU; nothing without one."""
        if self._has_gpus:
            torch.cuda.set_device(device_index)

    def device_count(self) -> int:
        """How many GPUs there are; 1 for the processor."""
        return torch.cuda.device_count() if self._has_gpus else 1

    def synchronize(self) -> None:
        """Wait for the GPU; nothing without one."""
        if self._has_gpus:
            torch.cuda.synchronize()

    def communication_backend_name(self) -> str:
        """For init_distributed()."""
        return "torsh"


def get_accelerator() -> Accelerator:
    """The device that this rank computes on."""
    return Accelerator()
