"""Copies from GPUs by torch. Imports torch, so import it only where torch is in use."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from torsh_runtime.arrays.raw import Bytes
from torsh_runtime.arrays.torch import elements

_PORTABLE = 1
"""Lets all devices know that the memory is page-locked."""


class PageLock:
    """Keeps memory of the host page-locked as long as it lives. Where the driver cannot do that,
    copies are slower."""

    def __init__(self, memory: Bytes, device: torch.device) -> None:
        cudart = _module(device).cudart()
        address = memory.ctypes.data
        if int(cudart.cudaHostRegister(address, memory.nbytes, _PORTABLE)) == 0:
            weakref.finalize(self, _unlock, cudart, memory).atexit = False
        else:  # the next kernel would raise that error, which is none of its own
            with suppress(RuntimeError):
                torch.zeros(1, device=device)


def begin(copies: Sequence[tuple[torch.Tensor, Bytes]]) -> Callable[[], None]:
    """Begin to copy tensors on GPUs to the host, on streams of their own that follow what is
    enqueued on the current ones. What is returned waits until all copies are done."""
    streams: dict[torch.device, Any] = {}
    for tensor, target in copies:
        module = _module(tensor.device)
        stream = streams.get(tensor.device)
        if stream is None:
            stream = streams[tensor.device] = module.Stream(tensor.device)
            stream.wait_stream(module.current_stream(tensor.device))
        with module.stream(stream):
            elements(target, tensor).copy_(tensor.detach(), non_blocking=True)

    def wait() -> None:
        for stream in streams.values():
            stream.synchronize()

    return wait


def _unlock(cudart: Any, memory: Bytes) -> None:
    cudart.cudaHostUnregister(memory.ctypes.data)


def _module(device: torch.device) -> Any:
    """Return torch's module of a kind of devices, such as torch.cuda."""
    return getattr(torch, device.type)
