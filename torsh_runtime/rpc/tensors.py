"""torch's tensors in pickles: their elements beside the pickle. This module loads torch."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch


def reduce_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Reduce a tensor as pickle requires. Strided tensors become contiguous; those that are views
    of one memory each become a tensor of their own. Others are pickled as torch does."""
    plain = _plain(tensor)
    if plain is None:
        return _as_torch_does(tensor)
    facts = (plain.dtype, tuple(plain.shape), tensor.requires_grad, tensor.device.type)
    return _rebuild, (_buffer(plain), *facts)


def reduce_parameter(parameter: torch.nn.Parameter) -> tuple[Any, ...]:
    """Reduce a parameter as reduce_tensor() does a tensor."""
    plain = _plain(parameter)
    if plain is None:
        return _as_torch_does(parameter)
    facts = (plain.dtype, tuple(plain.shape), parameter.requires_grad, parameter.device.type)
    return _rebuild_parameter, (_buffer(plain), *facts)


_OF_NUMPY = {torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.bool}
"""Some of the dtypes that numpy has, too."""
REDUCERS: Mapping[type, Callable[[Any], tuple[Any, ...]]] = {
    torch.Tensor: reduce_tensor,
    torch.nn.Parameter: reduce_parameter,
}


def _as_torch_does(tensor: Any) -> tuple[Any, ...]:
    reduced: tuple[Any, ...] = tensor.__reduce_ex__(5)
    return reduced


def _plain(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor's elements in this process's memory, contiguous. Return None for a tensor
    that is more than its elements."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.__dict__:
        return None
    if not (tensor.is_cpu or tensor.is_cuda):
        return None
    plain = tensor.detach() if tensor.requires_grad else tensor
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    return plain.cpu().contiguous()


def _buffer(plain: torch.Tensor) -> pickle.PickleBuffer | bytes:
    if plain.numel() == 0:
        return b""
    if plain.dtype not in _OF_NUMPY:
        plain = plain.reshape(-1).view(torch.uint8)
    elements: Any = plain.numpy()
    return pickle.PickleBuffer(elements)


def _rebuild(
    buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool, device: str
) -> torch.Tensor:
    if len(buffer):
        tensor = torch.frombuffer(buffer, dtype=dtype).reshape(shape)
    else:
        tensor = torch.empty(shape, dtype=dtype)
    if device != "cpu":
        tensor = tensor.to(device)
    return tensor.requires_grad_() if requires_grad else tensor


def _rebuild_parameter(
    buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool, device: str
) -> torch.nn.Parameter:
    return torch.nn.Parameter(_rebuild(buffer, dtype, shape, False, device), requires_grad)
