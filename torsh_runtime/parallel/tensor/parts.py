"""Cuts a module's parameters to the parts that this rank keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torsh_runtime.comm.agreement import agree
from torsh_runtime.framework import Tensor, framework_of
from torsh_runtime.framework.parts import Part
from torsh_runtime.layout import Shard, TensorLayout
from torsh_runtime.parallel.agreement import digest
from torsh_runtime.parallel.layouts import cut
from torsh_runtime.parallel.regions.arrays import copied
from torsh_runtime.parallel.tensor.axis import Axis

CLIPPING = "tr.clip_grad_norm_(model, max_norm, mesh)"
"""Call that clips gradients if ranks of a mesh have parts of them."""
Layouts = dict[str, TensorLayout]


def layouts(module: object, shards: Mapping[str, Shard], axis: Axis) -> Layouts:
    """Return the layouts of a module's own parameters that are to be cut, and are still whole."""
    return {
        name: TensorLayout(tuple(getattr(module, name).shape), ((axis.name, axis.size, each),))
        for name, each in shards.items()
        if getattr(module, name, None) is not None
    }


def keep_part(parameter: Tensor, layout: TensorLayout, axis: Axis, name: str) -> None:
    """Replace the values of the parameter of this name by this rank's part, in memory of its
    own."""
    own = cut(parameter.data, layout.piece({axis.name: axis.index}))
    parameter.data = copied(own)
    mark_part(parameter, layout, axis, name)


def mark_part(parameter: Tensor, layout: TensorLayout, axis: Axis, name: str) -> None:
    """Tell the framework's functions that the parameter is a part."""
    shard = layout.axes[0][2]
    if axis.size > 1 and isinstance(shard, Shard):
        framework_of(parameter).mark(parameter, Part(name, axis.group, shard.dim, CLIPPING))


def check_same_input(values: Any, axis: Axis, where: str) -> None:
    """Raise ConfigError on all ranks if they are given different values."""
    told = f"shape {tuple(values.shape)}, dtype {values.dtype}, checksum {digest(values):08x}"
    advice = f"Ranks of the axis {axis.name!r} have parts of one layer, and take the same batch"
    agree(axis.group, f"the input of {where!r}", told, advice=advice)
