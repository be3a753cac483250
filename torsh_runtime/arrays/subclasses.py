"""Subclasses of torch's tensors that consist of other tensors, such as quantised ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from torsh_runtime.errors import CheckpointError, ConfigError

_OWN_MEMORY = (torch.Tensor, torch.nn.Parameter)


def is_subclass(value: object) -> bool:
    """Return whether the value is a tensor that cannot be restored from its elements alone.

    The result of a functional collective is none: reading it waits for its elements."""
    is_own = type(value) in _OWN_MEMORY or hasattr(value, "trigger_wait")
    return isinstance(value, torch.Tensor) and not is_own


def is_made_of_others(tensor: torch.Tensor) -> bool:
    """Return whether the tensor consists of other tensors, and has no memory of its own."""
    return hasattr(type(tensor), "__tensor_flatten__")


def refusal_of_distributed(name: str, value: object) -> str:
    """Return why a DTensor of torch cannot be saved; "" for any other value."""
    if type(value).__name__ != "DTensor":
        return ""
    return (
        f"{name!r} is a DTensor of torch, as torch's fully_shard() and parallelize_module() make "
        f"them: keep it with torch.distributed.checkpoint (dcp.save() of what get_state_dict() "
        f"gives), or shard it by tr.fully_shard() or tr.FullyShardedDataParallel"
    )


def taken_apart(name: str, tensor: torch.Tensor) -> tuple[str, dict[str, Any], Any]:
    """Return the name of the tensor's class, its parts by name, and the context to restore it.

    `name` names the tensor in errors. Raises ConfigError for a class that cannot be restored: it
    must be one that torch.load() accepts with weights_only=True, since no other class is created
    from the contents of a file.
    """
    kind = type(tensor)
    refused = refusal_of_distributed(name, tensor)
    if refused:
        raise ConfigError(refused)
    told = f"{name} is a tensor of the class {_full_name(kind)}"
    if not is_made_of_others(tensor):
        raise ConfigError(
            f"{told}, of which only the elements could be kept: pass "
            f"value.as_subclass(torch.Tensor) to keep these"
        )
    if kind not in _known().values():
        raise ConfigError(
            f"{told}, which torch.load() does not accept: allow it by "
            f"torch.serialization.add_safe_globals([{kind.__name__}]) before you save and load"
        )
    names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return _full_name(kind), {each: getattr(tensor, each) for each in names}, context


def put_together(
    kind: str,
    parts: Mapping[str, Any],
    context: Any,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> Any:
    """Restore the tensor and return it. It shares the memory of `parts`, which may be filled later.

    Raises CheckpointError for a class that torch.load() does not accept, or that copies its parts.
    """
    known = _known().get(kind)
    if known is None:
        raise CheckpointError(
            f"it has a tensor of the class {kind!r}, which torch.load() does not accept here: "
            f"import the library that it is of before you load, or allow the class by "
            f"torch.serialization.add_safe_globals()"
        )
    made = known.__tensor_unflatten__(dict(parts), context, torch.Size(shape), stride)
    for name, part in parts.items():
        own = getattr(made, name)
        if own is not part and own.data_ptr() != part.data_ptr() and math.prod(part.shape):
            raise CheckpointError(f"the class {kind!r} copies what its tensors are made of")
    return made


def _known() -> dict[str, Any]:
    """Return the classes of such tensors, by name, that may be created from files."""
    allowed = torch.serialization.get_safe_globals()
    classes = [each[0] if isinstance(each, tuple) else each for each in allowed]
    return {_full_name(each): each for each in classes if hasattr(each, "__tensor_unflatten__")}


def _full_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
