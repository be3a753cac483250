"""What NCCL's operations do to memory."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import reduce
from typing import Any

import numpy as np


class DataType(IntEnum):
    """ncclDataType_t."""

    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT8E4M3 = 10
    FLOAT8E5M2 = 11


SIZES = {
    each: 1 if "FLOAT8" in each.name else int(each.name.lstrip("BUINTFLOA")) // 8
    for each in DataType
}
"""Bytes of an element."""
OF_ML_DTYPES = {
    DataType.BFLOAT16: "bfloat16",
    DataType.FLOAT8E4M3: "float8_e4m3fn",
    DataType.FLOAT8E5M2: "float8_e5m2",
}
_SUM, _PROD, _MAX, _MIN, _AVG, _SCALED = range(6)
_FUNCTIONS = {_PROD: np.multiply, _MAX: np.fmax, _MIN: np.fmin}

Memory = Callable[[Any, int, int], Any]
"""(op, address, elements) -> their bytes."""


def moved(ops: list[Any], memory: Memory) -> None:
    """Do one operation; `ops` are what the ranks called, in their order, or send and recv."""
    first = ops[0]
    kind, count = first.kind, first.count
    if kind == "send":
        memory(ops[1], ops[1].target, count)[:] = memory(first, first.source, count)
    elif kind == "broadcast":
        root = ops[first.root]
        content = memory(root, root.source, count).copy()
        for op in ops:
            memory(op, op.target, count)[:] = content
    elif kind == "allgather":
        content = np.concatenate([memory(op, op.source, count) for op in ops])
        for op in ops:
            memory(op, op.target, count * len(ops))[:] = content
    else:
        _reduced(ops, memory)


def _reduced(ops: list[Any], memory: Memory) -> None:
    kind, count = ops[0].kind, ops[0].count
    scattered = kind == "reduce_scatter"
    size = count * len(ops) if scattered else count
    total = _total(ops, [memory(op, op.source, size) for op in ops])
    num_bytes = count * SIZES[ops[0].dtype]
    for op in ops:
        if kind == "allreduce" or op.root == op.rank:
            memory(op, op.target, count)[:] = total
        elif scattered:
            part = slice(op.rank * num_bytes, (op.rank + 1) * num_bytes)
            memory(op, op.target, count)[:] = total[part]


def _total(ops: list[Any], parts: list[Any]) -> Any:
    """The reduction, rounded to the dtype after every step, as bytes."""
    red_op, dtype = ops[0].red_op, _dtype(ops[0].dtype)
    with np.errstate(all="ignore"):
        values = [part.view(dtype) for part in parts]
        if red_op == _SCALED:
            factors = [np.frombuffer(op.factor, dtype)[0] for op in ops]
            values = [value * factor for value, factor in zip(values, factors, strict=True)]
        total = reduce(_FUNCTIONS.get(red_op, np.add), values)
        if red_op == _AVG:
            total = _divided(total, len(ops))
    return np.array(total, dtype).view(np.uint8)


def _divided(total: Any, ranks: int) -> Any:
    if total.dtype.kind in "iu":
        quotient = total // ranks
        return quotient + ((total < 0) & (quotient * ranks != total)).astype(total.dtype)
    return total / total.dtype.type(ranks)


def _dtype(dtype: DataType) -> Any:
    if dtype in OF_ML_DTYPES:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, OF_ML_DTYPES[dtype]))
    return np.dtype(dtype.name.lower())
