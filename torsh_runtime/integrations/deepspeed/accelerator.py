"""Defines get_accelerator(), which gives a rank's device with the methods of DeepSpeed's."""

from __future__ import annotations

import torch

__all__ = ["Accelerator", "get_accelerator"]


class Accelerator:
    """Stands for a GPU for each rank of a node if torch has any, otherwise for the CPU."""

    def __init__(self) -> None:
        self._has_gpus = torch.cuda.is_available()

    def is_available(self) -> bool:
        """Return True: there is always a device."""
        return True

    def device_name(self, device_index: int | None = None) -> str:
        """Return the device's name, such as "cuda:1" or "cpu"."""
        if not self._has_gpus:
            return "cpu"
        return "cuda" if device_index is None else f"cuda:{device_index}"

    def current_device_name(self) -> str:
        """Return the name of the current device."""
        return self.device_name(self.current_device() if self._has_gpus else None)

    def current_device(self) -> int:
        """Return the number of the current device; 0 for the CPU."""
        return torch.cuda.current_device() if self._has_gpus else 0

    def set_device(self, device_index: int) -> None:
        """Compute on this GPU from now on; do nothing without GPUs."""
        if self._has_gpus:
            torch.cuda.set_device(device_index)

    def device_count(self) -> int:
        """Return the number of GPUs; 1 for the CPU."""
        return torch.cuda.device_count() if self._has_gpus else 1

    def synchronize(self) -> None:
        """Wait for the GPU; do nothing without one."""
        if self._has_gpus:
            torch.cuda.synchronize()

    def communication_backend_name(self) -> str:
        """Return the name of the backend for init_distributed()."""
        return "torsh"


def get_accelerator() -> Accelerator:
    """Return the device on which this rank computes."""
    return Accelerator()
