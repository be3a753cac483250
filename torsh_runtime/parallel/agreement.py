"""Lets ranks compare a model and its wrapper, over any backend."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from torsh_runtime.arrays import raw
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework import Module, Tensor, framework_of
from torsh_runtime.framework.models import constant_parameters, kind_of, trained_parameters
from torsh_runtime.layout import TensorLayout
from torsh_runtime.parallel.broadcasting import broadcast_all

SAME_MODEL = "Build the same model on every rank, and give it the same options"
"""Advice if wrappers differ between ranks."""
SAME_VALUES = (
    "Build the same model on every rank, give it the same options, and seed all ranks alike or "
    "load the same checkpoint"
)
"""Advice if wrappers differ between ranks and values are compared too."""


def model_told(
    model: Module,
    with_all: bool,
    without: Set[int] = frozenset(),
    whole: Mapping[int, TensorLayout] | None = None,
) -> dict[str, object]:
    """Return what agree() compares of a model: its framework, and names, order, shapes and
    dtypes of its parameters. with_all: of constants and buffers, too. without: id() of tensors
    that may differ. whole: by id(), the layouts of parameters of which ranks have different
    parts."""
    kinds = {"parameter": trained_parameters(model)}
    if with_all:
        kinds |= {
            "parameter without gradient": constant_parameters(model),
            "buffer": [*model.named_buffers()],
        }
    layouts = whole or {}
    lines = [
        f"{what} {name!r} of shape {_shape(tensor, layouts)} and dtype {kind_of(tensor)[0]}"
        for what, named in kinds.items()
        for name, tensor in named
        if id(tensor) not in without
    ]
    return {"framework": framework_of(model).name, "model": lines}


def _shape(tensor: Tensor, whole: Mapping[int, TensorLayout]) -> str:
    layout = whole.get(id(tensor))
    return f"{tuple(tensor.shape)}" if layout is None else f"{layout.shape} over {layout.axes}"


def values_told(named: Sequence[tuple[str, Tensor]]) -> list[str]:
    """Return what agree() compares of the values of parameters."""
    return [
        f"parameter {name!r} with values of checksum {digest(each.data):08x}"
        for name, each in named
    ]


def send_from(rank: int, tensors: Sequence[Tensor], group: ProcessGroup) -> None:
    """Give everyone the rank's values."""
    broadcast_all((group, rank, tensor) for tensor in tensors)


def digest(values: Any) -> int:
    """Return a checksum of an array's or a tensor's elements, or 0 if it has no memory."""
    if getattr(values, "is_meta", False):
        return 0
    if (memory := raw.memory_of(values)) is None:
        memory = np.empty(values.nbytes, np.uint8)
        raw.copy_out(values, memory)
    return zlib.crc32(memory.data)
