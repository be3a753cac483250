"""Puts together what is computed block by block, or by column, in float32 or float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torsh_runtime.parallel.operations import Array, functions_of
from torsh_runtime.parallel.regions.arrays import empty


def merge(output: Array, logsumexp: Array, more: Array, its: Array) -> None:
    """Merge `more`, attention to other keys, into `output`; all arrays but `its` are overwritten.

    `its` is the logsumexp of `more`.
    """
    xp = functions_of(output)
    total = xp.logaddexp(logsumexp, its)
    weight = xp.exp(its - total)[..., None]
    if hasattr(output, "lerp_"):
        output.lerp_(more, weight)
    else:
        more -= output
        more *= weight
        output += more
    logsumexp[...] = total


class Sum:
    """Adds up gradients of parts of an array."""

    def __init__(self, like: Array) -> None:
        self._like = like
        self._total: Array | None = None
        self._first: tuple[tuple[slice, ...], Array] | None = None
        """The first gradient, if it was not of all elements: an array of them all may follow."""

    def add(self, at: tuple[slice, ...], gradient: Array) -> None:
        """Add the gradient of the part `at`; its array may be reused for the sum."""
        is_all = gradient.shape == self._like.shape and gradient.dtype == kind(self._like)
        if self._total is None and is_all:
            self._begin(gradient)
        elif self._total is None and self._first is None:
            self._first = at, gradient
        else:
            place = self.array()[at]
            place += gradient

    def array(self) -> Array:
        """Return the whole gradient, with zeros where nothing was added."""
        if self._total is not None:
            return self._total
        zeros = empty_by_token(self._like)
        zeros[...] = 0
        return self._begin(zeros)

    def _begin(self, total: Array) -> Array:
        self._total, first, self._first = total, self._first, None
        if first is not None:
            self.add(*first)
        return total


def empty_by_token(like: Array) -> Array:
    """Return an uninitialised array of like's shape, (batch, heads, tokens, size).

    Tokens are in memory one behind the other, each with its heads, as models have them.
    """
    batch, heads, tokens, size = like.shape
    return empty_in_kind(like, (batch, tokens, heads, size)).swapaxes(1, 2)


def empty_in_kind(like: Array, shape: Sequence[int]) -> Array:
    """Return an uninitialised array of this shape in the dtype for computing."""
    return empty(like, shape, kind(like))


def kind(like: Array) -> Any:
    """Return the dtype to compute in: float64 for float64, and float32 for all others."""
    xp = functions_of(like)
    return xp.float64 if like.dtype == xp.float64 else xp.float32
