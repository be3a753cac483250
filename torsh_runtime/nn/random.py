"""Holds the process's generator for initial weights and dropout, in host memory.

Numbers on a GPU are drawn there, from a seed that this generator draws, so its state determines
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from torsh_runtime.nn.arrays import Array, array_module

Draw = Callable[[Any, tuple[int, ...]], Array]
"""Draws float32 numbers uniformly from [0, 1): (generator of numpy or cupy, shape) -> array."""

_seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
_generator = np.random.default_rng(_seed)


def _draw(source: Any, shape: tuple[int, ...]) -> Array:
    drawn: Array = source.random(shape, dtype=np.float32)
    return drawn


_drawn: ContextVar[Draw] = ContextVar("how kept() draws", default=_draw)


def manual_seed(seed: int) -> None:
    """Seed the generator of initial weights and dropout.

    Args:
        seed: An integer of 0 or more.

    Raises:
        ValueError: For a negative seed.

    Example:
        ```python
        tr.nn.manual_seed(1)
        model = tr.nn.Linear(8, 2)  # the same weights whenever this runs
        ```
    """
    set_rng_state({**np.random.PCG64(seed).state, "seed": seed})


def initial_seed() -> int:
    """Return the seed of the generator."""
    return _seed


def get_rng_state() -> dict[str, Any]:
    """Return the generator's state, which JSON can represent.

    Example:
        ```python
        state = tr.nn.get_rng_state()
        first = tr.nn.randn(3)
        tr.nn.set_rng_state(state)
        tr.nn.randn(3)  # equal to first
        ```
    """
    return {**_generator.bit_generator.state, "seed": _seed}


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Restore a state that get_rng_state() returned.

    Args:
        state: The state.

    Example:
        ```python
        tr.nn.set_rng_state(checkpoint["rng"])
        ```
    """
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
    """Return the generator, for numbers in host memory."""
    return _generator


def randn(*shape: int) -> Any:
    """Return a float32 tensor from the standard normal distribution.

    Args:
        *shape: The sizes of its axes.

    Example:
        ```python
        tr.nn.randn(2, 3).shape  # (2, 3)
        ```
    """
    from torsh_runtime.nn.tensor import Tensor

    return Tensor(_generator.standard_normal(shape, dtype=np.float32))


def kept(like: Array, p: float) -> Array:
    """Return 0 with probability p, else 1 / (1 - p), in the shape and dtype of `like`."""
    xp = array_module(like)
    source = _generator if xp is np else xp.random.default_rng(int(_generator.integers(2**63)))
    chosen = _drawn.get()(source, like.shape) >= p
    return chosen * like.dtype.type(1 / (1 - p) if p < 1 else 0)
