"""The generator behind initial weights and dropout: one for the process, kept in host memory.

Numbers on a GPU are drawn there, from a seed that this generator gives, so its state is all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from torsh_runtime.nn.arrays import Array, array_module

Draw = Callable[[Any, tuple[int, ...]], Array]
"""(generator of numpy or cupy, shape) -> uniform numbers from [0, 1), of float32."""

_seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
_generator = np.random.default_rng(_seed)


def _draw(source: Any, shape: tuple[int, ...]) -> Array:
    drawn: Array = source.random(shape, dtype=np.float32)
    return drawn


_drawn: ContextVar[Draw] = ContextVar("how kept() draws", default=_draw)


def manual_seed(seed: int) -> None:
    """Begin anew from `seed`."""
    set_rng_state({**np.random.PCG64(seed).state, "seed": seed})


def initial_seed() -> int:
    """What the generator was seeded with."""
    return _seed


def get_rng_state() -> dict[str, Any]:
    """The generator's state, which JSON can hold."""
    return {**_generator.bit_generator.state, "seed": _seed}


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Go on from a state that get_rng_state() returned."""
    global _seed
    _seed = state.get("seed", _seed)
    _generator.bit_generator.state = state


@contextmanager
def drawing(draw: Draw) -> Iterator[None]:
    """Have the numbers that kept() compares with its probability drawn by this in the block."""
    token = _drawn.set(draw)
    try:
        yield
    finally:
        _drawn.reset(token)


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
    chosen = _drawn.get()(source, like.shape) >= p
    return chosen * like.dtype.type(1 / (1 - p) if p < 1 else 0)
