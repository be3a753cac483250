"""All-to-all attention: each rank gets some heads of the whole sequence (Jacobs et al., DeepSpeed
Ulysses, 2023).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.context.chunks import lengths
from torsh_runtime.parallel.context.order import by_rank, in_order


def refusal(heads: int, kv_heads: int, ranks: int) -> str:
    """Return why these heads cannot be divided between the ranks; "" if they can."""
    if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
        return (
            f"{heads} heads and {kv_heads} of keys cannot be divided between {ranks} ranks: use "
            f"method='ring' or 'all_gather'"
        )
    return ""


def own_heads(tensor: Any, group: ProcessGroup) -> Any:
    """Return the part of a tensor (heads, ...) for this rank's heads."""
    share = tensor.shape[0] // group.world_size
    return tensor[group.rank * share : (group.rank + 1) * share]


def attention_by_heads(
    attention: Callable[[Any, Any, Any], Any],
    query: Any,
    key: Any,
    value: Any,
    group: ProcessGroup,
    length: int,
) -> Any:
    """Apply `attention` to this rank's heads of the whole sequence and return all heads of its
    tokens.

    If there are fewer heads of keys than ranks, several ranks get each.
    """
    ranks = group.world_size
    sizes = lengths(length, ranks)

    def whole(tensor: Any) -> Any:
        heads = tensor.shape[1]
        if heads < ranks:
            tensor = tensor[:, np.repeat(np.arange(heads), ranks // heads)]
        shares = [tensor.shape[1] // ranks] * ranks
        return in_order(regions.all_to_all(tensor, group, shares, sizes, 1, 2), 2, length, ranks)

    found = attention(whole(query), whole(key), whole(value))
    shares = [query.shape[1] // ranks] * ranks
    return regions.all_to_all(by_rank(found, 2, length, ranks), group, sizes, shares, 2, 1)
