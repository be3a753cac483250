"""What libraries that know fewer reductions are given instead."""

from __future__ import annotations

from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import pytest
from support.suite.cases import DTYPES, check_equal, dtype_of, values
from support.suite.references import check_reduced, reductions

from torsh_runtime.backends.base import PremulSum, Reduce, ReduceOp
from torsh_runtime.backends.library.reductions import (
    Encoding,
    check_reducible,
    combine,
    divided,
    encoding,
    narrowed,
    widened,
)

LIBRARY = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}
GLOO = ("int8", "uint8", "int32", "int64", "float32", "float64")
DEFINED = [
    pytest.param(dtype, op, id=f"{dtype}-{getattr(op, 'name', 'PREMUL_SUM')}")
    for dtype in DTYPES
    for op in reductions(dtype)
]


def through_library(code: Encoding, inputs: list[Any]) -> Any:
    wires = [code.encode(array.copy()) for array in inputs]
    assert all(wire.dtype == code.wire for wire in wires)
    with np.errstate(over="ignore"):
        total = reduce(LIBRARY[code.op], wires)
    output = np.zeros_like(inputs[0])
    code.decode(total, output)
    return output


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize(("dtype", "op"), DEFINED)
def test_encoded_reductions_are_right(dtype: str, op: Reduce, ranks: int) -> None:
    inputs = [values(rank, 500, dtype) for rank in range(ranks)]
    code = encoding(inputs[0].dtype, op, ranks)
    check_reduced(through_library(code, inputs), inputs, op)
    fewer = narrowed(code, GLOO)
    if fewer is None:
        assert dtype.startswith("complex")
        assert op is ReduceOp.PRODUCT
    else:
        assert fewer.wire.name in GLOO
        check_reduced(through_library(fewer, inputs), inputs, op)
    if code.wire.kind in "iu" and code.wire.itemsize < 8:
        check_reduced(through_library(widened(code), inputs), inputs, op)
    combined = combine(inputs, op, ranks)
    with np.errstate(over="ignore"):
        check_reduced(combined.astype(inputs[0].dtype), inputs, op)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_extremes_of_special_values(dtype: str) -> None:
    special = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7, -1e-7]
    pairs = np.array(list(product(special, special)), dtype).T
    for op, ufunc in ((ReduceOp.MIN, np.minimum), (ReduceOp.MAX, np.maximum)):
        inputs = [np.ascontiguousarray(pairs[0]), np.ascontiguousarray(pairs[1])]
        result = through_library(encoding(inputs[0].dtype, op, 2), inputs)
        np.testing.assert_array_equal(result, ufunc(*inputs))


def test_where_the_wire_form_is_in_place_nothing_is_copied() -> None:
    array = np.ones((3, 4), np.float32)
    wire = encoding(array.dtype, ReduceOp.SUM, 2).encode(array)
    wire[:] = 7
    assert (array == 7).all()


def test_room_is_apart_from_what_the_library_reads() -> None:
    array = np.arange(6.0)
    code = encoding(array.dtype, ReduceOp.SUM, 2)
    assert not np.may_share_memory(code.room(array[:3], array), array)
    target = np.zeros(3)
    assert np.may_share_memory(code.room(target, array), target)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "uint64"])
def test_integers_are_divided_towards_zero(dtype: str) -> None:
    info = np.iinfo(dtype)
    whole = np.array([info.min, info.max, 0, 7, info.min + 1], dtype)
    for ranks in (1, 3, 200):
        exact = [abs(int(x)) // ranks * (1 if x >= 0 else -1) for x in whole]
        check_equal(divided(whole.copy(), ranks).astype(dtype), np.array(exact, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_defined_is_a_type_error(dtype: str) -> None:
    for op in ReduceOp:
        if op in reductions(dtype) or op is ReduceOp.PREMUL_SUM:
            continue
        with pytest.raises(TypeError, match=op.name):
            encoding(dtype_of(dtype), op, 2)


def test_a_factor_must_be_given() -> None:
    with pytest.raises(ValueError, match="PremulSum"):
        check_reducible("float32", ReduceOp.PREMUL_SUM)
    assert check_reducible("float32", PremulSum(2.0)) is ReduceOp.PREMUL_SUM
