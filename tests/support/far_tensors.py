"""Tensors of torch that are not in the host's memory, as far as a program can tell.

Each operation is torch's own, computed on the CPU. What makes a program wait for a GPU, according
to torch's documentation, is counted: reading an element, indices of nonzero elements, and copies
to the host, unless a stream is told to (far_streams). Call register() first, in a process that
ends with the test: torch then takes the device "far" for an accelerator.
"""

from __future__ import annotations

from collections import Counter
from functools import cache, wraps
from typing import Any

import torch
from support import far_streams, fused_kernels
from torch.utils import backend_registration
from torch.utils._pytree import tree_map_only

from torsh_runtime.comm.group import ProcessGroup

waits: Counter[str] = Counter()
"""Waits for the device, by the name of the operation."""
calls: Counter[str] = Counter()
"""Operations and collectives on the device, by name."""
_WAITING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal")
_NAME = "far"
_library = torch.library.Library("aten", "IMPL")


class FarTensor(torch.Tensor):
    """Says that it is on the device "far"."""

    here: torch.Tensor

    @staticmethod
    def __new__(cls, here: torch.Tensor) -> FarTensor:
        make: Any = torch.Tensor._make_wrapper_subclass
        facts = {"dtype": here.dtype, "device": f"{_NAME}:0", "strides": here.stride()}
        made = make(cls, here.shape, storage_offset=here.storage_offset(), **facts)
        made.here = here
        return made  # type: ignore[no-any-return]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"FarTensor({self.here})"

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, given: tuple[Any, ...] = (), named: Any = None
    ) -> Any:
        named, name = dict(named or {}), operation._schema.name
        goes_home = _goes_home(name, given, named)
        calls[name] += 1
        if name == "aten::copy_" and goes_home and _is_non_blocking(given, named):
            target, source = given[0], given[1].here
            far_streams.module.current_stream().enqueue(lambda: target.copy_(source))
            return target
        waits[name] += name in _WAITING or goes_home or _comes(name, given, named)
        operation = fused_kernels.KERNELS.get(name, operation)
        if "device" in named and not goes_home:
            named["device"] = torch.device("cpu")
        there, named_there = tree_map_only(FarTensor, lambda each: each.here, (given, named))
        result = operation(*there, **named_there)
        if name.endswith("_") and isinstance(result, torch.Tensor):
            return given[0]
        return result if goes_home else tree_map_only(torch.Tensor, _far, result)


@cache
def register() -> None:
    """Make the device known to torch, for the rest of the process."""
    backend_registration._setup_privateuseone_for_python_backend(_NAME, far_streams.module)
    _library.impl("empty_strided", _empty_strided, "PrivateUse1")
    for name in ("all_gather_into_tensor", "all_reduce", "broadcast"):
        setattr(ProcessGroup, name, _of_device(getattr(ProcessGroup, name)))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> FarTensor:
    return FarTensor(torch.empty_strided(size, stride, dtype=dtype))


def _of_device(collective: Any) -> Any:
    """The collective, which takes the device's tensors as well, as one of its backends would."""

    @wraps(collective)
    def call(group: ProcessGroup, *given: Any, **named: Any) -> Any:
        calls[collective.__name__] += any(isinstance(each, FarTensor) for each in given)
        return collective(group, *tree_map_only(FarTensor, lambda each: each.here, given), **named)

    return call


def far(tensor: torch.Tensor) -> FarTensor:
    """The same values on the device."""
    return FarTensor(tensor.detach().clone())


def _far(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if isinstance(tensor, FarTensor) else FarTensor(tensor)


def _goes_home(name: str, given: tuple[Any, ...], named: dict[str, Any]) -> bool:
    if name == "aten::_to_copy":
        return torch.device(named.get("device") or _NAME).type == "cpu"
    return name == "aten::copy_" and not isinstance(given[0], FarTensor)


def _comes(name: str, given: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Return whether it copies from the host, and returns only when that is done."""
    copies = name == "aten::copy_" and not isinstance(given[1], FarTensor)
    makes = name == "aten::_to_copy" and not isinstance(given[0], FarTensor)
    return (copies or makes) and not _is_non_blocking(given, named)


def _is_non_blocking(given: tuple[Any, ...], named: dict[str, Any]) -> bool:
    return bool(named.get("non_blocking")) or True in given[2:]
