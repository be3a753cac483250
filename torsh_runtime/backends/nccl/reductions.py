"""Reductions as NCCL can do them: what it is given, and what is made of what it gives back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.base import PremulSum, Reduce, ReduceOp
from torsh_runtime.backends.library.reductions import check_reducible
from torsh_runtime.backends.nccl.device import FLOAT8, Operand
from torsh_runtime.backends.nccl.library import Communicator, Nccl

_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_NAMES = {ReduceOp.PRODUCT: "PROD"}
_BOOLEAN = {
    **dict.fromkeys((ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BOR), ReduceOp.MAX),
    **dict.fromkeys((ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.BAND), ReduceOp.MIN),
    ReduceOp.BXOR: ReduceOp.SUM,  # of bytes; the lowest bit says whether the number was odd
}
_AS = {"bool": "uint8", "complex64": "float32", "complex128": "float64"}
_CONVERTED = {"int16": "int32", "uint16": "int32"}
_OWN_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
"""The floats of 8 bits that NCCL can reduce, from a version and from a kind of GPU on."""
_SINCE, _CAPABILITY = (2, 24), (9, 0)


class Reduction:
    """Prepares and finishes one reduction of one dtype."""

    def __init__(self, nccl: Nccl, dtype: str, op: Reduce, ranks: int) -> None:
        """Choose the steps of the reduction.

        Raises TypeError if it is not defined, NCCL lacks it, or a factor is not a number;
        ValueError for no reduction or for PREMUL_SUM without a factor.
        """
        if dtype.startswith(FLOAT8):
            _check_float8(dtype, op)
        kind = check_reducible("float16" if dtype.startswith(FLOAT8) else dtype, op)
        if (kind in _BITWISE and dtype != "bool") or (
            kind is ReduceOp.PRODUCT and dtype.startswith("complex")
        ):
            raise TypeError(f"NCCL cannot reduce {dtype} by {kind.name}; use backend 'native'")
        self._nccl = nccl
        self._dtype = dtype
        self._ranks = ranks
        self._factor = _scalar(op.factor, dtype) if isinstance(op, PremulSum) else None
        self._is_parity = dtype == "bool" and kind is ReduceOp.BXOR
        # The wider sum of these must be cut to the dtype before it is divided.
        self._is_mean = dtype in _CONVERTED and kind is ReduceOp.AVG
        self._kind = ReduceOp.SUM if self._is_mean else kind
        if dtype == "bool":
            self._kind = _BOOLEAN[kind]

    @contextmanager
    def op(self, communicator: Communicator) -> Iterator[Any]:
        """Yield NCCL's own name of the operation, for the calls made within the block."""
        if self._factor is None:
            yield getattr(self._nccl, _NAMES.get(self._kind, self._kind.name))
            return
        wanted = self._nccl.NcclDataType[_AS.get(self._dtype, self._dtype).upper()]
        try:
            yield communicator.create_pre_mul_sum(self._factor, wanted)
        finally:
            # It may go once the calls have returned. Closing it alone would leave its object with
            # the communicator, which keeps one for each operation.
            communicator.close_all_resources()

    def wire(self, values: Operand) -> Any:
        """Return the flat array for NCCL: the same memory, or a copy in a wider dtype."""
        if self._dtype in _CONVERTED:
            return values.framework.converted(values.flat, _CONVERTED[self._dtype])
        if self._dtype in _AS:
            return values.framework.viewed(values.flat, _AS[self._dtype])
        return values.flat

    def has_to_finish(self, values: Operand) -> bool:
        """Return whether the result must still be moved or converted when NCCL is done."""
        return self._is_parity or self._is_mean or self._dtype in _CONVERTED or values.is_copied

    def finish(self, values: Operand, wire: Any) -> None:
        """Put the result where it belongs."""
        if self._is_parity:
            wire &= 1
        if self._dtype in _CONVERTED:
            values.framework.assign(values.flat, wire)
        if self._is_mean:
            mean = values.framework.converted(values.flat, "float64")
            mean /= self._ranks
            values.framework.assign(values.flat, mean)  # towards zero, as C converts
        values.finish()


def _check_float8(dtype: str, op: Reduce) -> None:
    """Raise TypeError unless NCCL can reduce arrays of this dtype, which is a float of 8 bits."""
    why = ""
    if dtype not in _OWN_FLOAT8:
        why = "it has no such numbers"
    elif isinstance(op, PremulSum) or op in _BITWISE:
        why = "by PREMUL_SUM and bitwise operations; use SUM"
    elif not _reduces_float8():
        why = "before version 2.24, or on GPUs of a compute capability below 9.0"
    if why:
        raise TypeError(f"NCCL cannot reduce {dtype}: {why}. Convert the array to bfloat16 for it")


@cache
def _reduces_float8() -> bool:
    found = import_module("nccl.core").get_version().libnccl
    device = import_module("cuda.core").Device()
    capability = tuple(device.compute_capability)
    return bool(found and found.version.release >= _SINCE and capability >= _CAPABILITY)


def _scalar(factor: float, dtype: str) -> NDArray[Any]:
    """Return the factor in host memory as an array of one element of this dtype."""
    if not isinstance(factor, (int, float, np.integer, np.floating)):
        raise TypeError(f"the factor of PremulSum must be a number, not {factor!r}")
    with np.errstate(over="ignore"):
        if dtype != "bfloat16":
            return np.array([factor], _AS.get(dtype, dtype))
        bits = np.array([factor], np.float32).view(np.uint32)
        to_even = 0x7FFF + (bits >> 16 & 1)
        return ((bits + to_even) >> 16).astype(np.uint16)
