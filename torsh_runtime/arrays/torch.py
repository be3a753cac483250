"""torch CPU tensors as numpy arrays. Imports torch, so import it only where torch is in use."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torsh_runtime.arrays.devices import is_for_rocm, way_out
from torsh_runtime.numpy_or_cupy import bfloat16


def host_view(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a view of the tensor's memory as an array of the same shape, strides and dtype.

    Waits for the result of a functional collective. Raises BackendUnavailable for bfloat16 without
    the package ml_dtypes, TypeError for tensors that are not dense ones in this process's memory.
    """
    if hasattr(tensor, "trigger_wait"):  # an AsyncCollectiveTensor: the tensor within
        tensor = tensor.trigger_wait()
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise TypeError(
            f"a {tensor.layout} tensor on {tensor.device} cannot take part in a collective of a "
            f"CPU backend; {_instead(tensor.device.type)}"
        )
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        raise TypeError(
            "the tensor is a lazy conjugate or negative: call resolve_conj() and resolve_neg()"
        )
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(bfloat16())
    try:
        return plain.numpy()
    except TypeError:
        return _opaque(plain)
    except RuntimeError:
        raise TypeError(
            f"a {type(tensor).__name__} has no memory of its own; pass the tensor that it stands "
            f"for (of a DTensor: to_local())"
        ) from None


def _instead(device: str) -> str:
    if device == "cpu":
        return "use a dense one"
    if device == "cuda" and not is_for_rocm():
        return (
            "use a dense one on the CPU, or backend 'nccl' for CUDA tensors, "
            "'cpu:native,cuda:nccl' for both"
        )
    return way_out(device)


def _opaque(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a view of a tensor whose dtype numpy does not have, such as float8.

    Its dtype is a structure with a single field, which has the name of the tensor's dtype.
    """
    name, width = str(tensor.dtype).removeprefix("torch."), tensor.element_size()
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    try:
        values = tensor.view(integers[width]).numpy()
    except (KeyError, RuntimeError, TypeError) as error:
        raise TypeError(f"{tensor.dtype} is not supported: {error}") from None
    return values.view(np.dtype([(name, values.dtype)]))


def copy_out(tensor: torch.Tensor, target: NDArray[np.uint8]) -> None:
    """Write the bytes of `tensor` to `target`, which has the same length."""
    elements(target, tensor).copy_(tensor.detach())


@torch.no_grad()
def copy_in(tensor: torch.Tensor, source: NDArray[np.uint8]) -> None:
    """Write the bytes into `tensor`, in place."""
    tensor.copy_(elements(source, tensor))


def memory_of(tensor: torch.Tensor) -> NDArray[np.uint8] | None:
    """Return a view of the tensor's bytes, as a one-dimensional uint8 array.

    Returns None unless they are contiguous in this process's memory.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_conj():
        return None
    memory: NDArray[np.uint8] = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memory


def empty(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Return an uninitialised CPU tensor. Raises TypeError for a dtype that torch does not have."""
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise TypeError(f"{dtype!r} is no dtype of torch's")
    return torch.empty(shape, dtype=kind)


def elements(memory: NDArray[np.uint8], like: torch.Tensor) -> torch.Tensor:
    """Return a tensor in this memory, of the dtype and shape of `like`."""
    return torch.from_numpy(memory).view(like.dtype).view(like.shape)


def part_like(flat: torch.Tensor, start: int, like: torch.Tensor) -> torch.Tensor:
    """Return a view of the elements of `flat` from `start` on, in the shape of `like`.

    It has the strides of `like` too, where its elements fill their memory without overlaps."""
    # torch keeps strides in a copy if the elements fill their memory and do not overlap.
    if torch.empty_like(like, device="meta").stride() == like.stride():
        return flat.as_strided(like.size(), like.stride(), flat.storage_offset() + start)
    return flat[start : start + like.numel()].view(like.shape)
