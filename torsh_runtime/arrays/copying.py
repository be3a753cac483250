"""Copies many arrays into one piece of the host's memory, those on GPUs with one wait."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from torsh_runtime.arrays.raw import Bytes, copy_out, framework_of


class Copying:
    """Copies into memory that is used again, and is page-locked when the first tensor comes from a
    GPU: copies from there then take the time that the bus needs."""

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory
        self._lock: Any = None

    def take(self, copies: Iterable[tuple[Any, Bytes]]) -> None:
        """Copy the bytes of arrays and tensors to their places within the memory. When this
        returns all are there."""
        on_gpus: list[tuple[Any, Bytes]] = []
        here: list[tuple[Any, Bytes]] = []
        for values, target in copies:
            (on_gpus if _is_on_gpu(values) else here).append((values, target))
        wait = self._begin(on_gpus) if on_gpus else None
        try:
            for values, target in here:
                copy_out(values, target)
        finally:  # what is under way writes to the memory
            if wait is not None:
                wait()

    def _begin(self, copies: list[tuple[Any, Bytes]]) -> Any:
        from torsh_runtime.arrays.torch_copies import PageLock, begin

        if self._lock is None:
            self._lock = PageLock(self._memory, copies[0][0].device)
        return begin(copies)


def _is_on_gpu(values: Any) -> bool:
    """Return whether torch's module of the device, such as torch.cuda, can page-lock memory."""
    if framework_of(values) != "torch" or values.device.type == "cpu":
        return False
    return hasattr(getattr(sys.modules["torch"], values.device.type, None), "cudart")
