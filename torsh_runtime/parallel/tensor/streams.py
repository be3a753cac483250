"""Random numbers for a part of a tensor."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from torsh_runtime.framework import Tensor, framework_of
from torsh_runtime.nn import random
from torsh_runtime.parallel.regions.arrays import Array, part, resized
from torsh_runtime.parallel.streams import random_stream
from torsh_runtime.parallel.tensor.axis import Axis


def drawing_part(
    tensor: Tensor, axis: Axis, dim: int, cuts: tuple[int, ...] = ()
) -> AbstractContextManager[None]:
    """Return a block in which dropout draws for a tensor of which each rank has a part along `dim`:
    what one process would have drawn for that part in nn, a stream of each rank's own in torch. The
    random state must be equal on all ranks before, and is equal afterwards.

    cuts: where the ranks' parts end; none if they are equal.
    """
    framework = framework_of(tensor)
    if not framework.draws_for_whole:
        return random_stream(framework.random_number(), axis.index)
    own, index = tensor.shape[dim], axis.index
    start, size = (cuts[index], cuts[-1]) if cuts else (own * index, own * axis.size)
    return random.drawing(partial(_drawn, dim, start, size))


def _drawn(
    dim: int, start: int, size: int, source: np.random.Generator, shape: tuple[int, ...]
) -> Array:
    """Draw numbers for the whole dimension, and return this rank's part, from `start` on."""
    place = dim % len(shape)
    whole: Any = source.random(resized(shape, place, size), dtype=np.float32)
    own: Array = part(whole, place, start, start + shape[place])
    return own
