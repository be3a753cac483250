"""The generator behind initial weights and dropout: one for the process, kept in host memory.

Numbers on a GPU are drawn there, from a seed that this generator gives, so its state is all of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from torsh_runtime.nn.arrays import Array, array_module

_generator = np.random.default_rng()


def manual_seed(seed: int) -> None:
    """Begin anew from `seed`."""
    set_rng_state(np.random.PCG64(seed).state)


def get_rng_state() -> dict[str, Any]:
    """The generator's state, which JSON can hold."""
    return dict(_generator.bit_generator.state)


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Go on from a state that get_rng_state() returned."""
    _generator.bit_generator.state = state


def generator() -> np.random.Generator:
    """The generator itself, for numbers in host memory."""
    return _generator


def randn(*shape: int) -> Any:
    """A tensor of float32 from the standard normal distribution."""
    from torsh_runtime.nn.tensor import Tensor

    return Tensor(_generator.standard_normal(shape, dtype=np.float32))


class _Drawn(threading.local):
    part: tuple[int, int, int] | None = None


_drawn = _Drawn()


@contextmanager
def drawing_part(dim: int, start: int, size: int) -> Iterator[None]:
    """Within the block arrays that dropout is for are parts, from `start` on, of those that have
    this size along `dim`: what is drawn for them is their part of what is drawn for the whole.
    """
    before, _drawn.part = _drawn.part, (dim, start, size)
    try:
        yield
    finally:
        _drawn.part = before


def kept(like: Array, p: float) -> Array:
    """0 with probability p, else 1 / (1 - p), for each element of `like` and of its dtype."""
    xp = array_module(like)
    source = _generator if xp is np else xp.random.default_rng(int(_generator.integers(2**63)))
    shape, own = [*like.shape], [slice(None)] * like.ndim
    if _drawn.part is not None:
        dim, start, size = _drawn.part
        own[dim] = slice(start, start + shape[dim])
        shape[dim] = size
    chosen = source.random(shape, dtype=np.float32)[tuple(own)] >= p
    return chosen * like.dtype.type(1 / (1 - p) if p < 1 else 0)
