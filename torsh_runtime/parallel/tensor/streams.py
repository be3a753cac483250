"""Random numbers for a part of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torsh_runtime.layout import Shard, TensorLayout
from torsh_runtime.parallel.regions.arrays import resized
from torsh_runtime.parallel.streams import drawing_piece
from torsh_runtime.parallel.tensor.axis import Axis


def drawing_part(
    tensor: Any, axis: Axis, dim: int, cuts: Sequence[int] = ()
) -> AbstractContextManager[None]:
    """A block in which dropout draws for tensors of which each rank has a part along `dim`, as it
    has of this one: see streams.dropout_region().

    cuts: where the ranks' parts end; none if they are equal.
    """
    own = tensor.shape[dim]
    places = cuts or range(0, own * axis.size + 1, own)

    def layout_of(shape: tuple[int, ...]) -> TensorLayout:
        at = dim % len(shape)
        shard = Shard.at(at, places)
        return TensorLayout(resized(shape, at, places[-1]), ((axis.name, axis.size, shard),))

    return drawing_piece(layout_of, {axis.name: axis.index}, (axis.name,))
