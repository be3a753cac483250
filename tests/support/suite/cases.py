"""What a case is, and what cases are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from torsh_runtime.backends.base import Backend
from torsh_runtime.enumerations import DTYPES as ALL_DTYPES

Array = Any
Body = Callable[[Backend], None]

LONG = 30.0
"""Seconds that no operation takes that can be completed."""
DTYPES = tuple(name for name in ALL_DTYPES if name != "bfloat16" or find_spec("ml_dtypes"))
"""Dtypes that arrays can have here."""


class Case(NamedTuple):
    name: str
    body: Body
    ranks: int = 1
    """The least number of ranks it makes sense with."""
    processes: bool = False
    """Whether the ranks must be processes."""


class Suite:
    """Cases of one subject."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def case(self, ranks: int = 1, processes: bool = False) -> Callable[[Body], Body]:
        """Take the function as a case."""

        def take(body: Body) -> Body:
            self.cases.append(Case(body.__name__, body, ranks, processes))
            return body

        return take

    def each(self, values: Sequence[Any]) -> Callable[[Callable[[Backend, Any], None]], Any]:
        """Take the function as a case for each value of its second argument."""

        def take(body: Callable[[Backend, Any], None]) -> Any:
            for value in values:
                name = f"{body.__name__}-{getattr(value, 'name', value)}"
                self.cases.append(Case(name, partial(_call, body, value)))
            return body

        return take


def _call(body: Callable[[Backend, Any], None], value: Any, backend: Backend) -> None:
    body(backend, value)


def dtype_of(name: str) -> np.dtype[Any]:
    """The numpy dtype, of which bfloat16 is another package's."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


@lru_cache(maxsize=2000)
def values(rank: int, size: int, dtype: str, seed: int = 0) -> Array:
    """A rank's input, the same in every process; read-only. Integers of the whole range, floats
    from 1/4 to 4 of both signs, so that no product of a few leaves any format's range.
    """
    generator = np.random.default_rng((seed, rank, size))
    if dtype == "bool":
        result = generator.integers(0, 2, size).astype(bool)
    elif "int" in dtype:
        info = np.iinfo(dtype)
        result = generator.integers(info.min, info.max, size, dtype, endpoint=True)
    elif dtype.startswith("complex"):
        result = (_floats(generator, size) + 1j * _floats(generator, size)).astype(dtype)
    else:
        result = _floats(generator, size).astype(dtype_of(dtype))
    result.flags.writeable = False
    return result


def _floats(generator: np.random.Generator, size: int) -> Array:
    return generator.choice([-1.0, 1.0], size) * 2.0 ** generator.uniform(-2, 2, size)


def empty(size: int, dtype: str) -> Array:
    """An array full of something that no correct result leaves there."""
    result = np.empty(size, dtype_of(dtype))
    result.view(np.uint8)[...] = 0 if dtype == "bool" else 0xAB
    return result


def check_equal(got: Array, wanted: Array) -> None:
    """The same elements, bit for bit."""
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(np.ravel(got).view(np.uint8), np.ravel(wanted).view(np.uint8))


def check_same_everywhere(backend: Backend, array: Array) -> None:
    """The same bits on every rank."""
    flat = np.ravel(array).view(np.uint8)
    gathered = np.empty((backend.world_size, flat.size), np.uint8)
    backend.all_gather(gathered, flat, LONG)
    assert (gathered == flat).all()


def uneven(rank: int) -> int:
    """A size for each rank; one of them is nothing."""
    return (7, 0, 300, 33, 1001)[rank % 5]
