"""Reductions by libraries that know fewer of them: what they are given instead, bit for bit safe.

A library is handed numbers of a type that it knows, and adds, multiplies or compares those:

- bool goes as bytes of 0 and 1; OR, AND and XOR of them are what SUM, PRODUCT and so on mean.
- float16 and bfloat16 are reduced in float32 and rounded once.
- MIN and MAX of floats go as integers in the same order, with NaN at the winning end, because the
  libraries' own comparisons lose NaN or keep it depending on the order of the ranks.
- AVG is a SUM that is divided afterwards; PREMUL_SUM a SUM of values that were multiplied before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.base import PremulSum, Reduce, ReduceOp
from torsh_runtime.enumerations import DTYPES
from torsh_runtime.remembering import remembered

Array = NDArray[Any]

_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_EXTREMES = (ReduceOp.MIN, ReduceOp.MAX)
_NARROW = ("float16", "bfloat16")
_BOOLEAN = {
    ReduceOp.SUM: ReduceOp.BOR,
    ReduceOp.MAX: ReduceOp.BOR,
    ReduceOp.PRODUCT: ReduceOp.BAND,
    ReduceOp.MIN: ReduceOp.BAND,
}
_UFUNCS = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


@dataclass(frozen=True, slots=True)
class Encoding:
    """Describes how a library carries out one reduction of one dtype."""

    op: ReduceOp
    """The library's operation: SUM, PRODUCT, MIN, MAX, BAND, BOR or BXOR."""
    wire: np.dtype[Any]
    """The dtype that the library sees."""
    in_place: bool
    """True if the wire form uses the array's own memory."""
    into: Callable[[Array], Array]
    """Converts flat values to their wire form."""
    back: Callable[[Array], Array]
    """Converts the reduced wire form, which it may change, to values of the dtype or a wider one.
    """

    def encode(self, source: Array) -> Array:
        """Return the flat wire form of a contiguous array: its own memory, or a copy."""
        return self.into(source.reshape(-1))

    def room(self, target: Array, apart_from: Array) -> Array:
        """Return memory where the library may put the wire form of the result for `target`.

        It does not overlap `apart_from`.
        """
        if self.in_place and not np.may_share_memory(target, apart_from):
            return self.into(target.reshape(-1))
        return np.empty(target.size, self.wire)

    def decode(self, wire: Array, target: Array) -> None:
        """Put the reduced values where they belong, in target's dtype."""
        values = self.back(wire)
        flat = target.reshape(-1)
        if values.ctypes.data != flat.ctypes.data:
            with np.errstate(over="ignore", invalid="ignore"):
                np.copyto(flat, values, casting="unsafe")


def check_reducible(dtype: str, op: Reduce) -> ReduceOp:
    """Return the kind of the reduction.

    Raises ValueError if it is none, TypeError if elements of this dtype cannot be reduced by it.
    """
    if dtype not in DTYPES:
        raise TypeError(f"arrays of {dtype} can be moved, but no reduction is defined for them")
    kind = ReduceOp.PREMUL_SUM if isinstance(op, PremulSum) else ReduceOp(op)
    if kind is ReduceOp.PREMUL_SUM and not isinstance(op, PremulSum):
        raise ValueError("PREMUL_SUM needs its factor: pass PremulSum(factor)")
    is_bool, is_complex = dtype == "bool", dtype.startswith("complex")
    is_float = "float" in dtype
    refused = {
        ReduceOp.AVG: is_bool,
        ReduceOp.PREMUL_SUM: not (is_float or is_complex),
        ReduceOp.MIN: is_complex,
        ReduceOp.MAX: is_complex,
    }.get(kind, kind in _BITWISE and (is_float or is_complex))
    if refused:
        raise TypeError(f"{kind.name} is not defined for {dtype}; convert the array or use another")
    return kind


@remembered(maxsize=256, typed=True)
def reduction_of(dtype: np.dtype[Any], op: Reduce) -> ReduceOp:
    """Return check_reducible() of an array's dtype."""
    return check_reducible(str(dtype), op)


@remembered(maxsize=256)
def encoding(dtype: np.dtype[Any], op: Reduce, ranks: int) -> Encoding:
    """Return the encoding for a library that has all integers, float32, float64 and complex
    numbers.

    Raises what `check_reducible` raises.
    """
    kind = reduction_of(dtype, op)
    if dtype.kind == "b":
        return _viewed(_BOOLEAN.get(kind, kind), np.uint8, dtype)
    if dtype.name in _NARROW:
        return _in_float32(encoding(np.dtype(np.float32), op, ranks))
    if kind in _EXTREMES and dtype.kind == "f":
        return _ordered(kind, dtype)
    if isinstance(op, PremulSum):
        factor = dtype.type(op.factor)
        return Encoding(ReduceOp.SUM, dtype, False, lambda flat: flat * factor, _as_is)
    if kind is ReduceOp.AVG:
        return Encoding(ReduceOp.SUM, dtype, True, _as_is, lambda total: divided(total, ranks))
    return Encoding(kind, dtype, True, _as_is, _as_is)


def combine(parts: Sequence[Array], op: Reduce, ranks: int) -> Array:
    """Reduce parts of one dtype, in their order, on this processor. A new array, of the dtype or
    a wider one."""
    code = encoding(parts[0].dtype, op, ranks)
    total = np.array(code.encode(parts[0]))
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            _UFUNCS[code.op](total, code.encode(part), out=total)
    return code.back(total)


def prefixes(parts: Sequence[Array], op: Reduce, ranks: int) -> list[Array]:
    """Return the reductions of the first part, of the first two, and so on.

    The parts have one dtype and one size and are reduced in their order. The results are new arrays
    of that dtype.
    """
    code = encoding(parts[0].dtype, op, ranks)
    total = np.array(code.encode(parts[0]))
    results = [part.copy() for part in parts]
    with np.errstate(all="ignore"):
        for part, result in zip(parts[1:], results[1:], strict=True):
            _UFUNCS[code.op](total, code.encode(part), out=total)
            code.decode(total.copy(), result)
    return results


def narrowed(code: Encoding, known: Sequence[str]) -> Encoding | None:
    """Return the encoding for a library that knows only the dtypes `known`, or None.

    Integers may be sent as wider or as signed ones: sums and products wrap around to the same bits.
    """
    if code.wire.name in known:
        return code
    if code.wire.kind == "c":
        part = np.dtype(f"f{code.wire.itemsize // 2}")
        return _reviewed(code, part) if code.op is ReduceOp.SUM else None
    if code.wire.kind not in "iu":
        return None
    if code.wire.itemsize == 8:
        return _reviewed(code, np.dtype(np.int64)) if code.op not in _EXTREMES else _shifted(code)
    return widened(code)


def widened(code: Encoding) -> Encoding:
    """Return `code` with integers of up to 32 bits sent as wider ones of 32 or 64 bits."""
    wider = np.dtype(np.int32 if code.wire.itemsize < 4 else np.int64)
    return Encoding(
        code.op,
        wider,
        False,
        lambda flat: code.into(flat).astype(wider),
        lambda reduced: code.back(reduced.astype(code.wire)),
    )


def divided(total: Array, ranks: int) -> Array:
    """Divide `total` by `ranks`, possibly in place.

    Integers round towards zero and may come back wider.
    """
    if total.dtype.kind == "c":
        parts = total.view(f"f{total.dtype.itemsize // 2}")
        parts /= ranks
        return total
    if total.dtype.kind == "f":
        total /= ranks
        return total
    wide = total if total.dtype == np.uint64 else total.astype(np.int64, copy=False)
    quotient: Array = wide // ranks
    quotient += (wide < 0) & (quotient * ranks != wide)
    return quotient


def _as_is(flat: Array) -> Array:
    return flat


def _viewed(op: ReduceOp, wire: Any, dtype: np.dtype[Any]) -> Encoding:
    return Encoding(
        op, np.dtype(wire), True, lambda flat: flat.view(wire), lambda flat: flat.view(dtype)
    )


def _reviewed(code: Encoding, wire: np.dtype[Any]) -> Encoding:
    """Return `code` with its wire form viewed as a different dtype."""
    return Encoding(
        code.op,
        wire,
        code.in_place,
        lambda flat: code.into(flat).view(wire),
        lambda reduced: code.back(reduced.view(code.wire)),
    )


def _in_float32(code: Encoding) -> Encoding:
    """Return `code`, which is for float32, for narrower floats."""

    def into(flat: Array) -> Array:
        return code.into(flat.astype(np.float32))

    return Encoding(code.op, code.wire, False, into, code.back)


def _shifted(code: Encoding) -> Encoding:
    """Send MIN and MAX of uint64 as int64: flipping the highest bit keeps the order."""
    turn, signed = np.uint64(1 << 63), np.dtype(np.int64)
    return Encoding(
        code.op,
        signed,
        False,
        lambda flat: (code.into(flat) ^ turn).view(signed),
        lambda reduced: code.back(reduced.view(np.uint64) ^ turn),
    )


def _ordered(op: ReduceOp, dtype: np.dtype[Any]) -> Encoding:
    """Send floats as integers of the same order: negative ones have their lower bits flipped.

    NaN becomes the largest value for MAX and the smallest for MIN, so that it wins.
    """
    integer = np.dtype(f"i{dtype.itemsize}")
    lower = integer.type(np.iinfo(integer).max)
    winner = np.copysign(dtype.type(np.nan), 1 if op is ReduceOp.MAX else -1)

    def turned(bits: Array) -> Array:
        result: Array = bits ^ ((bits >> integer.type(8 * integer.itemsize - 1)) & lower)
        return result

    def into(flat: Array) -> Array:
        return turned(np.where(np.isnan(flat), winner, flat).view(integer))

    return Encoding(op, integer, False, into, lambda reduced: turned(reduced).view(dtype))
