"""Copies torch's tensors between GPUs and the memory of the CPU, beside what GPUs compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from torsh_runtime.framework.protocol import Call

Tensor = torch.Tensor

_LEAST = 1 << 16
"""Bytes of an activation that is worth a copy."""

_streams: dict[torch.device, Any] = {}


def pinned(size: int | Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return uninitialised memory of the CPU that a GPU copies to and from by itself."""
    return torch.empty(size, dtype=dtype, pin_memory=torch.cuda.is_available())


@contextmanager
def aside(like: Tensor) -> Iterator[None]:
    """Put what the block launches on a stream of its own, behind what the current one has."""
    if not is_on_gpu(like):
        yield
        return
    stream = _streams.get(like.device)
    if stream is None:
        made: Any = torch.cuda.Stream
        stream = _streams[like.device] = made(like.device, priority=-1)
    stream.wait_stream(torch.cuda.current_stream(like.device))
    with torch.cuda.stream(stream):
        yield


def copy_without_waiting(target: Tensor, source: Tensor) -> None:
    """Copy values to or from pinned memory, in turn with the current stream."""
    target.copy_(source, non_blocking=True)


def moment(like: Tensor) -> Call:
    """Return a function that waits until the device has done what the current stream has now."""
    if not is_on_gpu(like):
        return lambda: None
    made: Any = torch.cuda.Event
    event = made()
    event.record(torch.cuda.current_stream(like.device))
    wait: Call = event.synchronize
    return wait


def offloading(call: Any, inputs: Any, named: Any, kept: Sequence[Tensor]) -> Any:
    """Return call(*inputs, **named), and keep what its backward pass needs in the memory of the
    CPU meanwhile. kept: memory of what stays where it is."""
    hooks = torch.autograd.graph.saved_tensors_hooks(partial(_taken_out, kept), _brought_back)
    with hooks:
        return call(*inputs, **named)


def is_on_gpu(tensor: Tensor) -> bool:
    """Return whether a tensor is on a GPU."""
    return tensor.is_cuda


def _taken_out(kept: Sequence[Tensor], tensor: Tensor) -> Any:
    """Return a tensor itself, or a copy on the CPU, its device, and what waits for the copy."""
    address = tensor.untyped_storage().data_ptr()
    is_small = not is_on_gpu(tensor) or tensor.nbytes < _LEAST
    if is_small or any(each.untyped_storage().data_ptr() == address for each in kept):
        return tensor
    host = pinned(tensor.shape, tensor.dtype)
    with torch.no_grad(), aside(tensor):
        copy_without_waiting(host, tensor)
        arrived = moment(tensor)
        if tensor.is_cuda:  # its memory is not used anew before it has been copied
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return host, tensor.device, arrived


def _brought_back(packed: Any) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    host, device, arrived = packed
    arrived()
    found: Tensor = host.to(device, non_blocking=True)
    return found
