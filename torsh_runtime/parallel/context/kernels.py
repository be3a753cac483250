"""Computes attention to one block of keys, forward and backward, for any framework.

query: (batch, heads, L, E), key: (batch, kv_heads, S, E), value: (batch, kv_heads, S, F), where
kv_heads divides heads: consecutive heads of queries share one of keys. Forward returns the output
of softmax over this block, (batch, heads, L, F), and the logarithm of the sum of the
exponentials of scores, (batch, heads, L); both in float32, or float64 if the operands are. Backward
takes these two for all blocks together, so that the gradients of the blocks add up to the whole
ones (Liu et al., Ring Attention, 2023). In causal attention query i looks at keys 0 to i,
and there are no fewer queries than keys. In a band it looks at keys at some distances, at one key
at least.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torsh_runtime.parallel.context.sequence import Band
from torsh_runtime.parallel.operations import Array, cast, functions_of
from torsh_runtime.parallel.regions.arrays import empty

V = TypeVar("V", bound=Array)


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


class Merged:
    """Merges the results of blocks. In the first block each query has exactly one task."""

    output: Array
    logsumexp: Array

    def __init__(self, query: Array, value: Array) -> None:
        self._like, self._shape = query, (*query.shape[:3], value.shape[-1])
        self.is_begun = False

    def begin(self) -> None:
        """Begin with zeros, which queries that look at no key keep."""
        self._make_room()
        self.output[...] = 0
        self.logsumexp[...] = -math.inf
        self.is_begun = True

    def _make_room(self) -> None:
        self.output = empty_in_kind(self._like, self._shape)
        self.logsumexp = empty_in_kind(self._like, self._shape[:3])

    def sink(self, sinks: Array) -> None:
        """Add a score of each head, whose value is zero, to the softmax."""
        xp = functions_of(self.output)
        scores = cast(sinks, self.output.dtype)[:, None]
        total = xp.logaddexp(self.logsumexp, scores)
        self.output *= xp.exp(self.logsumexp - total)[..., None]
        self.logsumexp = total

    def add(self, own: tuple[slice, ...], output: Array, logsumexp: Array) -> None:
        """Merge a result for some queries; both arrays are taken over."""
        if self.is_begun:
            merge(self.output[own], self.logsumexp[own], output, logsumexp)
        elif output.shape == self._shape:
            self.output, self.logsumexp = output, logsumexp
        else:
            if not hasattr(self, "output"):
                self._make_room()
            self.output[own], self.logsumexp[own] = output, logsumexp


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


@dataclass(frozen=True, slots=True)
class Attention(Generic[V]):
    """Describes the attention of queries to one block of keys."""

    query: V
    key: V
    value: V
    is_causal: bool
    scale: float
    band: Band | None = None


class Kernel(ABC, Generic[V]):
    """Computes attention to one block in one way."""

    @abstractmethod
    def forward(self, block: Attention[V]) -> tuple[V, V]:
        """Return the output and the logsumexp, in new memory."""

    @abstractmethod
    def backward(self, gradient: V, block: Attention[V], output: V, logsumexp: V) -> tuple[V, V, V]:
        """Return this block's contributions to the gradients of query, key and value."""


class Products(Kernel[Array]):
    """Multiplies whole matrices, which any framework can do; those of 16 bits in float32, as
    torch's attention by products does.
    """

    in_columns = range(256, sys.maxsize)
    """Lengths of causal attention that Columns make faster: all but small matrices."""

    def __init__(self, softcap: float | None = None) -> None:
        """Make a kernel without state.

        `softcap`: scores s become softcap · tanh(s / softcap) (Gemma Team, Gemma 2, 2024).
        """
        self._softcap = softcap

    def forward(self, block: Attention[Array]) -> tuple[Array, Array]:
        xp, (query, key, value) = functions_of(block.query), _cast(*_operands(block))
        scores = self._capped(_scores(query, key, block.scale))
        _hide(scores, block)
        highest = xp.amax(scores, -1)[..., None]
        scores -= highest
        xp.exp(scores, out=scores)
        total = scores.sum(-1)[..., None]
        output = (scores @ value[:, :, None]) / total
        logsumexp = (highest + xp.log(total))[..., 0]
        return _flat(output), _flat(logsumexp)

    def backward(
        self, gradient: Array, block: Attention[Array], output: Array, logsumexp: Array
    ) -> tuple[Array, Array, Array]:
        xp, heads = functions_of(block.query), block.key.shape[1]
        gradient, query, key, value, output = _cast(gradient, *_operands(block), output)
        delta = _grouped((gradient * output).sum(-1)[..., None], heads)
        gradient, key, value = _grouped(gradient, heads), key[:, :, None], value[:, :, None]
        weights = self._capped(_scores(query, key[:, :, 0], block.scale))
        slope = None if self._softcap is None else 1 - (weights / self._softcap) ** 2
        _hide(weights, block)
        weights -= _grouped(logsumexp[..., None], heads)
        xp.exp(weights, out=weights)
        for_value = (weights.swapaxes(-1, -2) @ gradient).sum(2)
        weights *= gradient @ value.swapaxes(-1, -2) - delta
        weights *= block.scale
        if slope is not None:
            weights *= slope
        for_key = (weights.swapaxes(-1, -2) @ _grouped(query, heads)).sum(2)
        return _flat(weights @ key), for_key, for_value

    def _capped(self, scores: Array) -> Array:
        """Cap scores in their own memory, and return them."""
        if self._softcap is not None:
            scores /= self._softcap
            functions_of(scores).tanh(scores, out=scores)
            scores *= self._softcap
        return scores


def _cast(*arrays: Array) -> list[Array]:
    return [cast(each, kind(each)) for each in arrays]


def _operands(block: Attention[V]) -> tuple[V, V, V]:
    return block.query, block.key, block.value


def _grouped(array: Array, heads: int) -> Array:
    """View (batch, heads, L, E) as (batch, kv_heads, queries of one key, L, E)."""
    batch, _, *rest = array.shape
    return array.reshape(batch, heads, -1, *rest)


def _flat(array: Array) -> Array:
    """Reverse _grouped()."""
    batch, heads, several, *rest = array.shape
    return array.reshape(batch, heads * several, *rest)


def _scores(query: Array, key: Array, scale: float) -> Array:
    return (_grouped(query, key.shape[1]) * scale) @ key[:, :, None].swapaxes(-1, -2)


def _hide(scores: Array, block: Attention[Array]) -> None:
    """Set scores of keys that a query does not look at to -∞."""
    queries, keys = scores.shape[-2:]
    band = Band(0, 0, queries) if block.is_causal else block.band
    if band is not None:
        scores += hidden(scores, queries, keys, band)


def hidden(like: Array, queries: int, keys: int, band: Band) -> Array:
    """Return (queries, keys): -∞ for keys that a query does not look at, 0 for others."""
    xp, (offset, least, most) = functions_of(like), band
    full = empty(like, (queries, keys))
    full[...] = -math.inf
    after = xp.triu(full, offset - least + 1)
    if most >= offset + queries - 1:
        return after
    before = xp.tril(full, offset - most - 1)
    return xp.minimum(after, before)


_COLUMNS = 4

Place = tuple[slice, slice, slice]
"""Slices of rows, heads and tokens; all rows and heads are taken."""


class Columns(Kernel[Array]):
    """A kernel that computes causal attention of some lengths in columns: a quarter of the keys at
    a time, with the queries from the first of these on. Of L² scores that makes 5/8, and the keys'
    gradients of a column are whole.
    """

    def __init__(self, kernel: Kernel[Any], lengths: Container[int]) -> None:
        """Wrap a kernel.

        `lengths`: the numbers of keys at which columns are faster than the kernel alone.
        """
        self._kernel, self._lengths = kernel, lengths

    def forward(self, block: Attention[Array]) -> tuple[Array, Array]:
        if not self._cuts(block):
            return self._kernel.forward(block)
        columns = _columns(block.key.shape[2])
        output, logsumexp = self._kernel.forward(_column(block, *next(columns)))
        for rows, column in columns:
            more = self._kernel.forward(_column(block, rows, column))
            merge(output[rows], logsumexp[rows], *more)
        return output, logsumexp

    def backward(
        self, gradient: Array, block: Attention[Array], output: Array, logsumexp: Array
    ) -> tuple[Array, Array, Array]:
        if not self._cuts(block):
            return self._kernel.backward(gradient, block, output, logsumexp)
        for_query = Sum(block.query)
        for_key, for_value = empty_by_token(block.key), empty_by_token(block.value)
        for rows, column in _columns(block.key.shape[2]):
            own = _column(block, rows, column)
            more, for_key[column], for_value[column] = self._kernel.backward(
                gradient[rows], own, output[rows], logsumexp[rows]
            )
            for_query.add(rows, more)
        return for_query.array(), for_key, for_value

    def _cuts(self, block: Attention[Array]) -> bool:
        return block.is_causal and block.key.shape[2] in self._lengths


def _column(block: Attention[Array], rows: Place, column: Place) -> Attention[Array]:
    query, key, value = block.query[rows], block.key[column], block.value[column]
    return Attention(query, key, value, True, block.scale)


def _columns(length: int) -> Iterator[tuple[Place, Place]]:
    """Yield the queries and the keys of each column; the first column has all queries."""
    width, every = -(-length // _COLUMNS), slice(None)
    for first in range(0, length, width):
        yield (every, every, slice(first, None)), (every, every, slice(first, first + width))
