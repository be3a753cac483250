"""Divides sequences between the ranks of an axis, and gathers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.context.chunks import chunks, lengths
from torsh_runtime.parallel.context.order import in_order, of_rank
from torsh_runtime.parallel.groups import group_of


def context_shard(tensor: Any, axis: Any, dim: int = 1) -> Any:
    """Return this rank's tokens of whole sequences along `dim`: an early and a late chunk.

    See context_attention() for the chunks.

    Args:
        tensor: A tensor of torch or nn, through which gradients flow, or an array.
        axis: The ranks, a process group or a DeviceMesh, as mesh["cp"].
        dim: The dimension of the sequence.

    Raises:
        ConfigError: For fewer tokens than two for each rank.

    Example:
        ```python
        own = tr.context_shard(input_ids, mesh["cp"])  # (rows, own tokens)
        ```
    """
    group = group_of(axis)
    dim %= len(tensor.shape)
    return of_rank(tensor, dim, tensor.shape[dim], group.world_size, group.rank)


def context_positions(
    length: int, axis: Any, documents: Sequence[int] | None = None
) -> NDArray[np.int64]:
    """Return the places of this rank's tokens, from 0, in their sequence.

    Args:
        length: The number of tokens of the whole sequence.
        axis: The ranks, a process group or a DeviceMesh, as mesh["cp"].
        documents: Cumulative lengths of documents; places are then counted within each document.

    Returns:
        int64 of shape (own tokens,).

    Raises:
        ConfigError: For fewer tokens than two for each rank, and for documents that are not those
            of such a sequence.

    Example:
        ```python
        own = tr.context_positions(8, mesh["cp"])  # [0, 1, 6, 7] on rank 0 of 2
        ```
    """
    group = group_of(axis)
    spans = chunks(length, group.world_size, group.rank)
    places = np.concatenate([np.arange(first, first + size) for first, _, size in spans])
    if documents is None:
        return places
    starts = np.asarray(documents, np.int64)
    if starts.ndim != 1 or starts[0] or starts[-1] != length or (np.diff(starts) < 0).any():
        raise ConfigError(
            f"documents {documents} are not cumulative lengths from 0 to {length}, of one sequence"
        )
    return places - starts[np.searchsorted(starts, places, "right") - 1]


def context_gather(tensor: Any, axis: Any, length: int | None = None, dim: int = 1) -> Any:
    """Gather the parts of all ranks and return whole sequences: the reverse of context_shard().

    Each rank uses the whole in its own way: the backward pass adds up the gradients of all, as fits
    losses that are averaged over the ranks.

    Args:
        tensor: This rank's part, a tensor of torch or nn.
        axis: The ranks, a process group or a DeviceMesh, as mesh["cp"].
        length: The length of the whole sequence; None if all ranks have as many tokens as this one.
        dim: The dimension of the sequence.

    Raises:
        ConfigError: For fewer tokens than two for each rank.
        CommError: If the exchange among the ranks fails.

    Example:
        ```python
        own = tr.context_shard(hidden, mesh["cp"])
        whole = tr.context_gather(own, mesh["cp"])  # equal to hidden
        ```
    """
    group = group_of(axis)
    dim %= len(tensor.shape)
    whole = length or tensor.shape[dim] * group.world_size
    sizes = lengths(whole, group.world_size)
    return in_order(regions.all_gather(tensor, group, dim, sizes), dim, whole, group.world_size)
