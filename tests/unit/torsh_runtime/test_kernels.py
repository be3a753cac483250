"""The reduction kernels against the same calculation in numpy, step by step and bit for bit."""

from __future__ import annotations

import math
import operator
import platform
import re
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.enumerations import DTYPES, REDUCTIONS

Array = np.ndarray[Any, Any]

INTEGERS = tuple(name for name in DTYPES if "int" in name)
HALVES = ("float16", "bfloat16")
FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
COUNTS = (0, 1, 2, 7, 16, 31, 127, 129, 257, 1000, 4099)
FACTOR = -1.7
EXACT: dict[str, Callable[[Array, Array], Array]] = {
    "SUM": operator.add,
    "AVG": operator.add,
    "PREMUL_SUM": operator.add,
    "PRODUCT": operator.mul,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": operator.and_,
    "BOR": operator.or_,
    "BXOR": operator.xor,
}
BITS = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}


def is_reducible(dtype: str, op: str) -> bool:
    return _native.is_reducible(DTYPES.index(dtype), REDUCTIONS.index(op))


REDUCIBLE = [pair for pair in product(DTYPES, REDUCTIONS) if is_reducible(*pair)]


def kernel(
    dtype: str,
    op: str,
    targets: Sequence[Array],
    sources: Sequence[Array],
    divisor: int = 0,
    factor: float = 1.0,
) -> None:
    to, of = ([array.view(np.uint8) for array in arrays] for arrays in (targets, sources))
    _native.reduce(to, of, DTYPES.index(dtype), REDUCTIONS.index(op), divisor, factor)


def reduced(dtype: str, op: str, sources: Sequence[Array], *args: Any, **kwargs: Any) -> Array:
    target = np.empty_like(sources[0])
    kernel(dtype, op, [target], sources, *args, **kwargs)
    return target


# ---- bfloat16 in numpy: arrays of uint16.


def stored_as(dtype: str) -> np.dtype[Any]:
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def widened(array: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def narrowed(array: Array, dtype: str) -> Array:
    """To the nearest, of two to the even one."""
    if dtype == "float16":
        return array.astype(np.float16)
    bits = array.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16)


# ---- Input.


def random_array(dtype: str, count: int, rng: np.random.Generator) -> Array:
    """Every kind of number, and with floats a few of each special one."""
    if dtype in ("bool", "float16", "bfloat16", *INTEGERS):
        stored = "uint8" if dtype == "bool" else stored_as(dtype)
        array = np.frombuffer(rng.bytes(count * np.dtype(stored).itemsize), stored).copy()
        return np.where(rng.integers(3, size=count) > 0, array, 0).astype(stored)
    if dtype in COMPLEX:
        part = "float32" if dtype == "complex64" else "float64"
        return random_array(part, 2 * count, rng).view(dtype)
    tiny = float(np.finfo(dtype).tiny)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, tiny / 3, -tiny * 1.5]
    normal = rng.standard_normal(count) * 10.0 ** rng.integers(-4, 5, size=count)
    pick = rng.integers(4 * len(special), size=count)
    return np.where(pick < len(special), np.resize(special, 4 * len(special))[pick], normal).astype(
        dtype
    )


# ---- The same in numpy.


def expected(op: str, dtype: str, sources: Sequence[Array], divisor: int, factor: float) -> Array:
    with np.errstate(all="ignore"):
        if dtype == "bool":
            bits: list[Array] = [s != 0 for s in sources]
            return reduce(EXACT[BITS.get(op, op)], bits).view(np.uint8)
        if dtype in INTEGERS:
            total = reduce(EXACT[op], sources)
            return divided(total, divisor) if op == "AVG" and divisor else total
        if dtype in HALVES:
            wide = [widened(s, dtype) for s in sources]
            return narrowed(expected(op, "float32", wide, divisor, factor), dtype)
        if dtype in COMPLEX:
            return expected_complex(op, sources, divisor, factor)
        return expected_float(op, sources, divisor, factor)


def divided(total: Array, divisor: int) -> Array:
    """Towards zero."""
    quotients = [abs(int(x)) // divisor * (1 if x >= 0 else -1) for x in total]
    return np.array(quotients, total.dtype)


def expected_float(op: str, sources: Sequence[Array], divisor: int, factor: float) -> Array:
    scalar = sources[0].dtype.type
    scaled = [s * scalar(factor) for s in sources] if op == "PREMUL_SUM" else sources
    total: Array = reduce(EXACT[op], scaled)
    if op == "AVG" and divisor:
        total = total / scalar(divisor)
    return total


def expected_complex(op: str, sources: Sequence[Array], divisor: int, factor: float) -> Array:
    if op == "PRODUCT":
        return reduce(multiplied, sources)
    part = sources[0].real.dtype
    parts = [s.view(part) for s in sources]
    return expected_float(op, parts, divisor, factor).view(sources[0].dtype)


def multiplied(a: Array, b: Array) -> Array:
    """Every product and every sum rounded by itself."""
    result = np.empty_like(a)
    result.real = a.real * b.real - a.imag * b.imag
    result.imag = a.real * b.imag + a.imag * b.real
    return result


def assert_same(dtype: str, got: Array, wanted: Array, zeros_alike: bool = False) -> None:
    """The same bits, but for those of a NaN."""
    values, others = (parts_of(dtype, array) for array in (got, wanted))
    assert values.shape == others.shape
    alike = values.view(f"V{values.itemsize}") == others.view(f"V{values.itemsize}")
    alike |= (values != values) & (others != others)
    if zeros_alike:
        alike |= (values == 0) & (others == 0)
    assert alike.all(), (values[~alike], others[~alike])


def parts_of(dtype: str, array: Array) -> Array:
    if dtype in HALVES:
        return widened(array, dtype)
    return array.view(array.real.dtype) if dtype in COMPLEX else array


# ---- Tests.


def test_what_is_reducible() -> None:
    def ops(dtype: str) -> set[str]:
        return {op for op in REDUCTIONS if is_reducible(dtype, op)}

    bits = {"BAND", "BOR", "BXOR"}
    assert ops("bool") == {"SUM", "PRODUCT", "MIN", "MAX"} | bits
    assert all(ops(x) == {"SUM", "AVG", "PRODUCT", "MIN", "MAX"} | bits for x in INTEGERS)
    assert all(ops(x) == set(REDUCTIONS) - bits for x in HALVES + FLOATS)
    assert all(ops(x) == {"SUM", "AVG", "PRODUCT", "PREMUL_SUM"} for x in COMPLEX)


@pytest.mark.parametrize("count_of_sources", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("dtype", "op"), REDUCIBLE)
def test_any_number_of_sources(dtype: str, op: str, count_of_sources: int) -> None:
    rng = np.random.default_rng(count_of_sources)
    for count, divisor in zip(COUNTS, (0, 1, 2, 3, 4, 7, 8, 200, 300, 1 << 16, 3), strict=True):
        sources = [random_array(dtype, count, rng) for _ in range(count_of_sources)]
        wanted = expected(op, dtype, sources, divisor, FACTOR)
        got = reduced(dtype, op, sources, divisor, FACTOR)
        assert_same(dtype, got, wanted, zeros_alike=op in ("MIN", "MAX"))


@pytest.mark.parametrize(("dtype", "op"), REDUCIBLE)
def test_targets_may_be_sources(dtype: str, op: str) -> None:
    rng = np.random.default_rng(5)
    for count_of_sources, more, count in product((1, 2, 3), (0, 1, 2), (5, 3001)):
        sources = [random_array(dtype, count, rng) for _ in range(count_of_sources)]
        wanted = reduced(dtype, op, sources, 3, FACTOR)
        targets = [*sources[::-1], *(np.empty_like(wanted) for _ in range(more))]
        kernel(dtype, op, targets, sources, 3, FACTOR)
        for target in targets:
            assert target.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(("dtype", "op"), REDUCIBLE)
def test_bits_do_not_depend_on_the_place(dtype: str, op: str) -> None:
    """Nor on how many elements there are, and all NaN are alike."""
    rng = np.random.default_rng(6)
    sources = [random_array(dtype, 700, rng) for _ in range(2)]
    with_nan = [(s.view(np.uint8) | (rng.integers(3, size=s.nbytes) > 0) * 0x7F) for s in sources]
    sources = [s.astype(np.uint8).view(sources[0].dtype) for s in with_nan]
    whole = reduced(dtype, op, sources, 3, FACTOR)
    for begin, end in ((0, 1), (1, 700), (3, 260), (5, 6), (699, 700)):
        part = reduced(dtype, op, [s[begin:end] for s in sources], 3, FACTOR)
        assert part.tobytes() == whole[begin:end].tobytes()


def test_without_targets_nothing_happens() -> None:
    source = np.ones(4, np.float32)
    kernel("float32", "SUM", [], [source, source])
    assert source.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_keeps_its_value(dtype: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(stored_as(dtype))
    one = narrowed(np.ones(every.size, np.float32), dtype)
    for op in ("PRODUCT", "MIN", "MAX"):
        others = one if op == "PRODUCT" else every
        assert_same(dtype, reduced(dtype, op, [every, others]), every)


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_are_rounded_once(dtype: str) -> None:
    """In halves, 1 + tiny + tiny would be 1; in float32 it is the next number."""
    one = narrowed(np.ones(99, np.float32), dtype)
    above = (one.view(np.uint16) + 1).view(one.dtype)
    tiny = narrowed((widened(above, dtype) - 1) / 2, dtype)
    assert_same(dtype, reduced(dtype, "SUM", [one, tiny, tiny]), above)


@pytest.mark.parametrize("dtype", HALVES)
def test_ties_go_to_the_even_one(dtype: str) -> None:
    rng = np.random.default_rng(8)
    low = rng.integers(0x7BFF if dtype == "float16" else 0x7F00, size=5000).astype(np.uint16)
    pair = [low.view(stored_as(dtype)), (low + 1).view(stored_as(dtype))]
    even = np.where(low % 2 == 0, low, low + 1).astype(np.uint16).view(stored_as(dtype))
    assert_same(dtype, reduced(dtype, "AVG", pair, 2), even)


@pytest.mark.parametrize("dtype", [*HALVES, *FLOATS, *COMPLEX])
@pytest.mark.parametrize("op", ["SUM", "AVG", "PREMUL_SUM"])
def test_error_bound(dtype: str, op: str) -> None:
    """Of n sources at most (n + 1) roundings of what the absolute values add up to."""
    rng = np.random.default_rng(9)
    calculated = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    unit = 2.0**-8 if dtype == "bfloat16" else float(np.finfo(calculated).eps)
    kind = "float32" if dtype in HALVES else dtype
    sources = [rng.standard_normal((1001, 2)).astype(calculated_in(kind)) for _ in range(8)]
    given = [as_given(s, dtype) for s in sources]
    got = parts_of(dtype, reduced(dtype, op, given, 8, FACTOR)).astype(np.longdouble)
    exact = np.array([parts_of(dtype, s) for s in given]).astype(np.longdouble)
    weight = {"SUM": 1.0, "AVG": 1 / 8, "PREMUL_SUM": FACTOR}[op]
    bound = (len(sources) + 1) * unit * abs(weight) * abs(exact).sum(axis=0)
    assert (abs(got - exact.sum(axis=0) * weight) <= bound).all()


def calculated_in(dtype: str) -> str:
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


def as_given(array: Array, dtype: str) -> Array:
    flat = array.reshape(-1)
    return narrowed(flat, dtype) if dtype in HALVES else flat.view(dtype)


@pytest.mark.parametrize("dtype", [*HALVES, *FLOATS, *COMPLEX])
def test_a_factor_that_is_no_number(dtype: str) -> None:
    one = as_given(np.ones((3, 2), calculated_in("float32" if dtype in HALVES else dtype)), dtype)
    bits = np.array([0x7FFFFFFFFFFFFFFF]).view(np.float64)[0]  # a NaN whose bits are all set
    for factor, isit in ((bits, np.isnan), (math.inf, np.isinf)):
        check: Callable[[Array], Array] = isit
        assert check(parts_of(dtype, reduced(dtype, "PREMUL_SUM", [one, one], 0, factor))).all()


def test_the_average_of_more_ranks_than_the_type_can_count() -> None:
    for dtype, divisor in product(INTEGERS, (1 << 20, 1 << 21, 3_000_001)):
        extremes = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
        zero = np.zeros_like(extremes)
        wanted = divided(extremes, divisor)
        assert reduced(dtype, "AVG", [extremes, zero], divisor).tolist() == wanted.tolist()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="others have one level")
def test_kernels_take_the_best_instructions_that_the_processor_has() -> None:
    """Also where a compiler's own library says that it has none."""
    (line, *_) = re.findall(r"(?m)^flags\s*:(.+)$", Path("/proc/cpuinfo").read_text())
    v3 = {"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "popcnt"}
    v4 = v3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    has = set(line.split())
    assert _native.vector_level() == (v3 <= has) + (v4 <= has)
