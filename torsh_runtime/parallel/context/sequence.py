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

    See context_attention() for the chunks. `tensor` is a tensor of torch or nn, through which
    gradients flow, or an array.

    axis: a process group, or a DeviceMesh, as mesh["cp"]. Raises ConfigError for fewer tokens than
    two for each rank.
    """
    group = group_of(axis)
    dim %= len(tensor.shape)
    return of_rank(tensor, dim, tensor.shape[dim], group.world_size, group.rank)


def context_positions(
    length: int, axis: Any, documents: Sequence[int] | None = None
) -> NDArray[np.int64]:
    """Return the places of this rank's tokens, from 0, in their sequence of `length` tokens.

    With `documents`, cumulative lengths of documents, places are counted within each document. The
    result is int64 of shape (this rank's tokens,).

    axis and ConfigError: as context_shard(). Raises ConfigError also for documents that are not
    those of such a sequence.
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

    Each rank uses the whole in its own way: backward adds up the gradients of all, as fits losses
    that are averaged over the ranks. length: None if all ranks have as many tokens as this one.
    axis and ConfigError: as context_shard().
    """
    group = group_of(axis)
    dim %= len(tensor.shape)
    whole = length or tensor.shape[dim] * group.world_size
    sizes = lengths(whole, group.world_size)
    return in_order(regions.all_gather(tensor, group, dim, sizes), dim, whole, group.world_size)
