"""Collectives within a model, through which gradients flow, for tensors of torch and of nn.

What Megatron-LM calls regions (Shoeybi et al., 2019; Korthikanti et al., 2022). All ranks of the
group call them in the same order, and so do their backward passes. In a group of one rank they
return what they are given. They raise what the group's collectives raise, ConfigError for sizes
that do not fit, TypeError for what is no tensor, and NotImplementedError within torch.func and
forward mode differentiation.

Sizes along a dimension are those of all ranks, in their order, and may differ.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework import Tensor, framework_of
from torsh_runtime.framework.operations import Operation
from torsh_runtime.parallel.regions.maps import (
    AllGather,
    AllToAll,
    Copy,
    Gather,
    Map,
    ReduceScatter,
    Scatter,
    Sum,
    as_sizes,
)

__all__ = [
    "all_gather",
    "all_to_all",
    "applied",
    "copy",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]


def copy(tensor: Tensor, group: ProcessGroup) -> Any:
    """Return the tensor, which is equal on all ranks and which each uses in its own way: backward
    sums their gradients.

    torch raises RuntimeError if somebody writes in place to what is returned, or, while it is used,
    to the tensor, whose memory it has; and where a function returns no gradient of it on this rank,
    and one on others.
    """
    return _mapped(tensor, Copy(group))


def reduce(tensor: Tensor, group: ProcessGroup, overwrites: bool = False) -> Any:
    """Return the sum of all ranks' tensors, which all use alike: backward gives each the gradient
    of the sum.

    overwrites: the sum takes the tensor's memory, of which nothing else may need the contents.
    """
    return _mapped(tensor, Sum(group, overwrites))


def gather(
    tensor: Tensor, group: ProcessGroup, dim: int, sizes: Sequence[int] | None = None
) -> Any:
    """Return all ranks' tensors, concatenated along a dimension, which all use alike: backward
    gives each its part of the gradient. sizes: None if all are as large as this one."""
    return _mapped(tensor, Gather(group, *_along(tensor, group, dim, sizes)))


def scatter(tensor: Tensor, group: ProcessGroup, dim: int, sizes: Sequence[int]) -> Any:
    """Return this rank's part, along a dimension, of a tensor that is equal on all ranks:
    backward gathers the gradients of all parts. The result may be a view."""
    return _mapped(tensor, Scatter(group, *_along(tensor, group, dim, sizes)))


def all_gather(
    tensor: Tensor, group: ProcessGroup, dim: int, sizes: Sequence[int] | None = None
) -> Any:
    """Return all ranks' tensors, concatenated along a dimension, which each uses in its own way:
    backward sums the gradients and gives each its part. sizes: None if all are as large as this."""
    return _mapped(tensor, AllGather(group, *_along(tensor, group, dim, sizes)))


def reduce_scatter(tensor: Tensor, group: ProcessGroup, dim: int, sizes: Sequence[int]) -> Any:
    """Return this rank's part, along a dimension, of the sum of all ranks' tensors: backward
    gathers the gradients of all parts."""
    return _mapped(tensor, ReduceScatter(group, *_along(tensor, group, dim, sizes)))


def all_to_all(
    tensor: Tensor,
    group: ProcessGroup,
    inputs: Sequence[int],
    outputs: Sequence[int],
    split_dim: int = 0,
    cat_dim: int = 0,
) -> Any:
    """Cut the tensor along `split_dim` into parts of sizes `inputs`, of which rank r gets the r-th,
    and put what comes one behind the other along `cat_dim`, where it has the sizes `outputs`.

    Backward sends the gradients back. Where the dimensions differ all ranks give the same
    `inputs`.
    """
    if group.world_size == 1:
        return tensor
    dims = split_dim % len(tensor.shape), cat_dim % len(tensor.shape)
    there, back = as_sizes(group, inputs), as_sizes(group, outputs)
    return _mapped(tensor, AllToAll(group, dims[0], there, dims[1], back))


def is_traced() -> bool:
    """Return whether a graph is being made; see integrations.torch.compiling."""
    if "torch" not in sys.modules:
        return False
    from torsh_runtime.integrations.torch import compiling

    return compiling.is_traced()


def _along(
    tensor: Tensor, group: ProcessGroup, dim: int, sizes: Sequence[int] | None
) -> tuple[int, tuple[int, ...]]:
    dim %= len(tensor.shape)
    return dim, as_sizes(group, sizes or (tensor.shape[dim],) * group.world_size)


def _mapped(tensor: Tensor, applied_map: Map) -> Any:
    return tensor if applied_map.group.world_size == 1 else applied(tensor, applied_map)


def applied(tensor: Tensor, operation: Operation) -> Any:
    """Apply an operation to a tensor. Gradients flow back by the operation's adjoint."""
    return framework_of(tensor).apply(operation, tensor)
