"""The generator behind initial weights and dropout: one for the process, kept in host memory.

Numbers on a GPU are drawn there, from a seed that this generator gives, so its state is all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def kept(like: Array, p: float) -> Array:
    """0 with probability p, else 1 / (1 - p), for each element of `like` and of its dtype."""
    xp = array_module(like)
    source = _generator if xp is np else xp.random.default_rng(int(_generator.integers(2**63)))
    chosen = source.random(like.shape, dtype=np.float32) >= p
    return chosen * like.dtype.type(1 / (1 - p) if p < 1 else 0)
