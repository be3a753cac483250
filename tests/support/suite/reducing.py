"""Reductions of every dtype by every operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.suite.cases import (
    DTYPES,
    LONG,
    Suite,
    check_equal,
    check_same_everywhere,
    dtype_of,
    empty,
    uneven,
    values,
)
from support.suite.references import check_reduced, reductions

from torsh_runtime.backends.base import Backend, PremulSum, ReduceOp

SUITE = Suite()
SIZES = (0, 1, 7, 13, 513, 4099, 70_001)


@SUITE.each(DTYPES)
def all_reduce(backend: Backend, dtype: str) -> None:
    for op in reductions(dtype):
        for size in SIZES:
            inputs = [values(r, size, dtype) for r in range(backend.world_size)]
            array = inputs[backend.rank].copy()
            backend.all_reduce(array, op, LONG)
            check_reduced(array, inputs, op)
            check_same_everywhere(backend, array)


@SUITE.each(DTYPES)
def reduce(backend: Backend, dtype: str) -> None:
    for op in reductions(dtype):
        for root in range(backend.world_size):
            inputs = [values(r, 1003, dtype, root) for r in range(backend.world_size)]
            array = inputs[backend.rank].copy()
            backend.reduce(array, root, op, LONG)
            if backend.rank == root:
                check_reduced(array, inputs, op)
            else:
                check_equal(array, inputs[backend.rank])


@SUITE.each(DTYPES)
def reduce_scatter(backend: Backend, dtype: str) -> None:
    ranks = backend.world_size
    for op in reductions(dtype):
        for size in (0, 1, 7, 4099):
            inputs = [values(r, size * ranks, dtype) for r in range(ranks)]
            output = empty(size, dtype)
            backend.reduce_scatter(output, inputs[backend.rank], op, LONG)
            part = slice(backend.rank * size, (backend.rank + 1) * size)
            check_reduced(output, [array[part] for array in inputs], op)


@SUITE.each(DTYPES)
def reduce_scatter_list(backend: Backend, dtype: str) -> None:
    ranks = range(backend.world_size)
    for op in reductions(dtype):
        inputs = [[values(r, uneven(part), dtype, part) for part in ranks] for r in ranks]
        output = empty(uneven(backend.rank), dtype)
        backend.reduce_scatter(output, inputs[backend.rank], op, LONG)
        check_reduced(output, [row[backend.rank] for row in inputs], op)


@SUITE.case()
def each_rank_has_its_own_factor(backend: Backend) -> None:
    array = np.full(100, 3.0, np.float32)
    backend.all_reduce(array, PremulSum(backend.rank + 0.5), LONG)
    assert (array == sum(3 * (r + 0.5) for r in range(backend.world_size))).all()


@SUITE.each(["float16", "bfloat16", "float32", "float64"])
def nan_wins_in_min_and_max(backend: Backend, dtype: str) -> None:
    if dtype not in DTYPES:
        return
    for op in (ReduceOp.MIN, ReduceOp.MAX):
        for culprit in range(backend.world_size):
            for sign in (1, -1):
                array = np.array([1.0, -2.0, np.inf, -np.inf]).astype(dtype_of(dtype))
                if backend.rank == culprit:
                    array[...] = np.copysign(np.nan, sign)
                backend.all_reduce(array, op, LONG)
                assert np.isnan(array.astype(np.float64)).all()


@SUITE.case()
def infinities_are_kept(backend: Backend) -> None:
    array = np.array([np.inf, -np.inf, 1e308, 0.0])
    backend.all_reduce(array, ReduceOp.MAX, LONG)
    assert array.tolist() == [np.inf, -np.inf, 1e308, 0.0]
    backend.all_reduce(array, ReduceOp.MIN, LONG)
    assert array.tolist() == [np.inf, -np.inf, 1e308, 0.0]


@SUITE.each(["float16", "bfloat16"])
def narrow_floats_are_summed_in_float32(backend: Backend, dtype: str) -> None:
    if dtype not in DTYPES or backend.world_size < 3:
        return
    large = 2048.0 if dtype == "float16" else 256.0  # and 1 is half a unit of its last place
    array = np.full(50, 1.0 if backend.rank else large).astype(dtype_of(dtype))
    backend.all_reduce(array, ReduceOp.SUM, LONG)
    wanted = np.float32(large + backend.world_size - 1).astype(array.dtype)
    assert (array == wanted).all()


@SUITE.each([dtype for dtype in DTYPES if len(reductions(dtype)) < len(ReduceOp)])
def what_is_not_defined_is_refused(backend: Backend, dtype: str) -> None:
    defined = reductions(dtype)
    array = np.zeros(10, dtype_of(dtype))
    undefined: list[Any] = [op for op in ReduceOp if op not in defined][:-1]
    if "int" in dtype or dtype == "bool":
        undefined.append(PremulSum(2.0))
    for op in undefined:
        with pytest.raises(TypeError):
            backend.all_reduce(array, op, LONG)
        with pytest.raises(TypeError):
            backend.reduce(array, 0, op, LONG)
        with pytest.raises(TypeError):
            backend.reduce_scatter(array, np.zeros(10 * backend.world_size, array.dtype), op, LONG)
    backend.barrier(LONG)  # the group lives


@SUITE.each(["sum", 99, -1, None])
def a_reduction_that_is_none_is_refused(backend: Backend, op: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        backend.all_reduce(np.zeros(3), op, LONG)
    backend.barrier(LONG)


@SUITE.case()
def reduce_scatter_into_its_own_input(backend: Backend) -> None:
    ranks, size = backend.world_size, 5000
    inputs = [values(r, size * ranks, "int64") for r in range(ranks)]
    array = inputs[backend.rank].copy().reshape(ranks, size)
    backend.reduce_scatter(array[backend.rank], array, ReduceOp.SUM, LONG)
    parts = [whole.reshape(ranks, size)[backend.rank] for whole in inputs]
    check_reduced(array[backend.rank], parts, ReduceOp.SUM)
