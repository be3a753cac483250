"""What of a module's parameters this rank keeps."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torsh_runtime.errors import disagreement
from torsh_runtime.framework import Tensor, framework_of
from torsh_runtime.framework.parts import Part
from torsh_runtime.layout import Shard, TensorLayout
from torsh_runtime.parallel.agreement import digest
from torsh_runtime.parallel.layouts import cut
from torsh_runtime.parallel.regions.arrays import copied
from torsh_runtime.parallel.tensor.axis import Axis

CLIPPING = "tr.clip_grad_norm_(model, max_norm, mesh)"
"""How gradients are clipped of which ranks of a mesh have parts."""
Layouts = dict[str, TensorLayout]


def layouts(module: Any, shards: Mapping[str, Shard], axis: Axis) -> Layouts:
    """Of a module's own parameters that are cut, which are whole yet."""
    return {
        name: TensorLayout(tuple(getattr(module, name).shape), ((axis.name, axis.size, each),))
        for name, each in shards.items()
        if getattr(module, name, None) is not None
    }


def keep_part(parameter: Tensor, layout: TensorLayout, axis: Axis, name: str) -> None:
    """Let the parameter of this name have the values of this rank alone, in memory of their own."""
    own = cut(parameter.data, layout.piece({axis.name: axis.index}))
    parameter.data = copied(own)
    mark_part(parameter, layout, axis, name)


def mark_part(parameter: Tensor, layout: TensorLayout, axis: Axis, name: str) -> None:
    """Let the framework's functions know that it is a part."""
    shard = layout.axes[0][2]
    if axis.size > 1 and isinstance(shard, Shard):
        framework_of(parameter).mark(parameter, Part(name, axis.group, shard.dim, CLIPPING))


def check_same_values(named: Sequence[tuple[str, Tensor]], axis: Axis) -> None:
    """ConfigError on all ranks, naming the first parameter of which they have other values."""
    own = np.array([digest(each.data) for _, each in named], np.int64)
    rows = axis.group.all_gather_numbers(own)
    differing = np.argwhere((rows != rows[0]).any(axis=0))
    if differing.size:
        column = int(differing[0, 0])
        others = np.flatnonzero(rows[:, column] != rows[0, column]).tolist()
        raise disagreement(
            f"parameter {named[column][0]!r} has other values on rank(s) "
            f"{', '.join(map(str, others))} of the axis {axis.name!r} than on rank 0: all ranks "
            f"begin with the same model, so seed them alike or load the same checkpoint",
            dict.fromkeys(others, "other values"),
            axis.group.job_ranks,
        )


def check_same_input(values: Any, axis: Axis, where: str) -> None:
    """ConfigError on all ranks if they are given different ones."""
    told = f"{tuple(values.shape)} {values.dtype} {digest(values)}"
    rows = axis.group.all_gather_numbers(np.array([zlib.crc32(told.encode())], np.int64))
    others = np.flatnonzero(rows[:, 0] != rows[0, 0]).tolist()
    if others:
        raise disagreement(
            f"{where}: rank(s) {', '.join(map(str, others))} of the axis {axis.name!r} are given "
            f"another input than rank 0: ranks that have parts of one layer take the same batch",
            dict.fromkeys(others, "another input"),
            axis.group.job_ranks,
        )
