"""Exactly the largest elements, whatever a sample says."""

from __future__ import annotations

import numpy as np
import pytest

from torsh_runtime.compression.arrays import half_dtype
from torsh_runtime.compression.pairs import pack, unpack
from torsh_runtime.compression.selection import at_least, largest

MANY = 200_000


def spikes() -> np.ndarray:
    values = np.zeros(MANY, np.float32)
    values[::1000] = np.arange(MANY // 1000) + 1.0
    return values


def shuffled() -> np.ndarray:
    return np.random.default_rng(0).permutation(MANY).astype(np.float32) - MANY / 2


CASES = {
    "normal": np.random.default_rng(1).standard_normal(MANY, dtype=np.float32),
    "float64": np.random.default_rng(1).standard_normal(MANY),
    "small": np.random.default_rng(1).standard_normal(100, dtype=np.float32),
    "equal": np.ones(MANY, np.float32),
    "zeros": np.zeros(MANY, np.float32),
    "spikes": spikes(),
    "shuffled": shuffled(),
    "at the end": np.concatenate([np.full(MANY - 50, 1e-30), np.ones(50)]).astype(np.float32),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("k", [1, 37, 60, 150_000, MANY])
def test_the_largest(name: str, k: int) -> None:
    values = CASES[name]
    found = largest(values, k)
    k = min(k, values.size)
    assert len(found) == k
    assert (np.diff(found) > 0).all()
    wanted = np.sort(np.abs(values))[values.size - k :]
    assert (np.sort(np.abs(values[found])) == wanted).all()


def test_what_is_not_finite_comes_first() -> None:
    values = CASES["normal"].copy()
    values[[5, 100_000]] = np.nan, -np.inf
    assert {5, 100_000} <= {*largest(values, 2000).tolist()}
    assert {5, 100_000} <= {*at_least(values, 3.0).tolist()}
    values[:] = np.nan
    assert len(largest(values, 10)) == 10


def test_a_sample_that_deceives() -> None:
    sampled = np.random.default_rng(0).integers(MANY, size=1 << 14)
    values = np.ones(MANY, np.float32)
    values[sampled] = 10  # so the sample says that there are many more of them
    found = largest(values, 20_000)
    assert len(found) == 20_000
    assert {*sampled.tolist()} <= {*found.tolist()}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, half_dtype("bfloat16")])
@pytest.mark.parametrize("size", [1, 65_536, 65_537, 400_000])
def test_pairs_survive_packing(dtype: object, size: int) -> None:
    draw = np.random.default_rng(size)
    indices = np.flatnonzero(draw.random(size) < 0.01)
    indices = np.union1d(indices, [0, size - 1])
    values = draw.standard_normal(indices.size).astype(dtype)
    packed = pack(indices, values, size)
    assert packed.nbytes % 4 == 0
    assert packed.nbytes <= 4 * (size // 65_536 + 2) + (2 + values.itemsize) * indices.size
    where, what = unpack(packed, size, values.dtype)
    assert (where == indices).all()
    assert (what == values).all()


def test_no_pairs() -> None:
    nothing = np.empty(0, np.int64)
    packed = pack(nothing, nothing.astype(np.float32), 100)
    where, what = unpack(packed, 100, np.dtype(np.float32))
    assert where.size == what.size == 0
