"""What reductions must give: exactly for integers and bool, within a bound for floats."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
from support.suite.cases import Array

from torsh_runtime.backends.base import PremulSum, Reduce, ReduceOp

_EXTREMES = {ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}
_INTEGER = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
    **_EXTREMES,
}
_BOOL = {
    ReduceOp.SUM: np.logical_or,
    ReduceOp.MAX: np.logical_or,
    ReduceOp.PRODUCT: np.logical_and,
    ReduceOp.MIN: np.logical_and,
    ReduceOp.BAND: np.logical_and,
    ReduceOp.BOR: np.logical_or,
    ReduceOp.BXOR: np.logical_xor,
}


def reductions(dtype: str) -> list[Reduce]:
    """Those that are defined for a dtype."""
    every = set(ReduceOp) - {ReduceOp.PREMUL_SUM}
    bits = {ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR}
    if dtype == "bool":
        return sorted(every - {ReduceOp.AVG})
    if "int" in dtype:
        return sorted(every)
    if dtype.startswith("complex"):
        return sorted(every - bits - set(_EXTREMES))
    return [*sorted(every - bits), PremulSum(1.7)]


def check_reduced(got: Array, inputs: list[Array], op: Reduce) -> None:
    """Compare with what the inputs, in order of rank, must give."""
    assert got.dtype == inputs[0].dtype
    if got.dtype.kind == "b":
        np.testing.assert_array_equal(got, reduce(_BOOL[_kind(op)], inputs))
    elif got.dtype.kind in "iu":
        np.testing.assert_array_equal(got, _integers(inputs, op))
    elif op in _EXTREMES:
        np.testing.assert_array_equal(got, reduce(_EXTREMES[_kind(op)], inputs))
    else:
        _check_floats(got, inputs, op)


def _kind(op: Reduce) -> ReduceOp:
    return ReduceOp.PREMUL_SUM if isinstance(op, PremulSum) else op


def _integers(inputs: list[Array], op: Reduce) -> Array:
    with np.errstate(over="ignore"):
        total = reduce(_INTEGER[_kind(op)], inputs)
    if op is not ReduceOp.AVG:
        return total
    ranks = total.dtype.type(len(inputs))
    is_cut = (total < 0) & (total % ranks != 0)  # towards zero, where // goes down
    return total // ranks + is_cut.astype(total.dtype)


def _check_floats(got: Array, inputs: list[Array], op: Reduce) -> None:
    """n ranks make n - 1 operations, each wrong by a relative eps at most; scaling and rounding
    to a narrow format make another two.
    """
    is_complex = got.dtype.kind == "c"
    wide = np.clongdouble if is_complex else np.longdouble
    exact = [
        array.astype(np.float64 if not is_complex else array.dtype).astype(wide) for array in inputs
    ]
    if isinstance(op, PremulSum):
        exact = [array * wide(op.factor) for array in exact]
    if op is ReduceOp.PRODUCT:
        result = reduce(np.multiply, exact)
        scale = np.abs(result) * (3 if is_complex else 1)
    else:
        result = reduce(np.add, exact)
        scale = reduce(np.add, [np.abs(array) for array in exact])
    if op is ReduceOp.AVG:
        result, scale = result / len(inputs), scale / len(inputs)
    bound = (len(inputs) + 1) * _eps(got.dtype) * scale
    assert (np.abs(_widened(got, wide) - result) <= bound).all()


def _widened(array: Array, wide: Any) -> Array:
    return (array if array.dtype.kind == "c" else array.astype(np.float64)).astype(wide)


def _eps(dtype: np.dtype[Any]) -> float:
    if dtype.name == "bfloat16":
        return 2.0**-7
    return float(np.finfo(dtype).eps)
