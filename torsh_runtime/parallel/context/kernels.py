"""Attention to one block of keys, forward and backward, on arrays of any framework.

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
from typing import Generic, TypeVar

from torsh_runtime.parallel.context.merging import kind
from torsh_runtime.parallel.context.tasks import Band
from torsh_runtime.parallel.operations import Array, cast, functions_of
from torsh_runtime.parallel.regions.arrays import empty

V = TypeVar("V", bound=Array)


class Kernel(ABC, Generic[V]):
    """Computes attention to one block in one way."""

    @abstractmethod
    def forward(
        self,
        query: V,
        key: V,
        value: V,
        is_causal: bool,
        scale: float,
        band: Band | None = None,
    ) -> tuple[V, V]:
        """Return the output and the logsumexp, in new memory."""

    @abstractmethod
    def backward(
        self,
        gradient: V,
        query: V,
        key: V,
        value: V,
        output: V,
        logsumexp: V,
        is_causal: bool,
        scale: float,
        band: Band | None = None,
    ) -> tuple[V, V, V]:
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

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        is_causal: bool,
        scale: float,
        band: Band | None = None,
    ) -> tuple[Array, Array]:
        xp, (query, key, value) = functions_of(query), _cast(query, key, value)
        scores = self._capped(_scores(query, key, scale))
        _hide(scores, is_causal, band)
        highest = xp.amax(scores, -1)[..., None]
        scores -= highest
        xp.exp(scores, out=scores)
        total = scores.sum(-1)[..., None]
        output = (scores @ value[:, :, None]) / total
        logsumexp = (highest + xp.log(total))[..., 0]
        return _flat(output), _flat(logsumexp)

    def backward(
        self,
        gradient: Array,
        query: Array,
        key: Array,
        value: Array,
        output: Array,
        logsumexp: Array,
        is_causal: bool,
        scale: float,
        band: Band | None = None,
    ) -> tuple[Array, Array, Array]:
        xp, heads = functions_of(query), key.shape[1]
        gradient, query, key, value, output = _cast(gradient, query, key, value, output)
        delta = _grouped((gradient * output).sum(-1)[..., None], heads)
        gradient, key, value = _grouped(gradient, heads), key[:, :, None], value[:, :, None]
        weights = self._capped(_scores(query, key[:, :, 0], scale))
        slope = None if self._softcap is None else 1 - (weights / self._softcap) ** 2
        _hide(weights, is_causal, band)
        weights -= _grouped(logsumexp[..., None], heads)
        xp.exp(weights, out=weights)
        for_value = (weights.swapaxes(-1, -2) @ gradient).sum(2)
        weights *= gradient @ value.swapaxes(-1, -2) - delta
        weights *= scale
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


def _hide(scores: Array, is_causal: bool, band: Band | None) -> None:
    """Set scores of keys that a query does not look at to -∞."""
    queries, keys = scores.shape[-2:]
    if is_causal:
        band = Band(0, 0, queries)
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
