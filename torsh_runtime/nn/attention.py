"""Implements scaled dot product attention, forward and backward as one operation each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from torsh_runtime.nn import random
from torsh_runtime.nn.activations import normalised
from torsh_runtime.nn.arrays import Array, array_module, fitted
from torsh_runtime.nn.graph import derived_jointly, operand

if TYPE_CHECKING:
    from torsh_runtime.nn.tensor import Tensor


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Return softmax(query @ keyᵀ · scale + mask) @ value.

    See Vaswani et al., "Attention Is All You Need", 2017.

    Args:
        query: The queries (…, L, E).
        key: The keys (…, S, E).
        value: The values (…, S, F).
        attn_mask: Booleans (False is masked out) or numbers to add, of a shape that broadcasts to
            (…, L, S); it gets no gradient.
        dropout_p: The probability with which weights are dropped.
        is_causal: Whether position i attends only to positions 0 to i.
        scale: The factor of scores; None is 1/√E.

    Returns:
        The result (…, L, F).

    Raises:
        ValueError: If shapes do not fit, or if both attn_mask and is_causal are given.

    Example:
        ```python
        q, k, v = (tr.nn.randn(2, 4, 10, 16) for _ in range(3))
        tr.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        ```
    """
    q, k, v = operand(query), operand(key), operand(value)
    _check(q, k, v, attn_mask, is_causal)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    weights = _scores(q, k, factor)
    mask = _causal(weights) if is_causal else _additive(operand(attn_mask), weights)
    if mask is not None:
        weights += mask
    normalised(weights)
    factors = random.kept(weights, dropout_p) if dropout_p else None
    applied = weights if factors is None else weights * factors
    result = applied @ v

    def pullback(g: Array) -> tuple[Array, Array, Array]:
        for_value = applied.swapaxes(-1, -2) @ g
        scores = g @ v.swapaxes(-1, -2)
        if factors is not None:
            scores *= factors
        scores -= (g * result).sum(axis=-1, keepdims=True)
        scores *= weights
        scores *= factor
        for_query, for_key = scores @ k, scores.swapaxes(-1, -2) @ q
        return fitted(for_query, q.shape), fitted(for_key, k.shape), fitted(for_value, v.shape)

    return derived_jointly(result, (query, key, value), pullback)


def _check(q: Array, k: Array, v: Array, mask: Any, is_causal: bool) -> None:
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"attention: query {q.shape}, key {k.shape}, value {v.shape} do not fit")
    if mask is not None and is_causal:
        raise ValueError("attention: is_causal and attn_mask exclude each other")


def _scores(q: Array, k: Array, factor: float) -> Array:
    return (q * q.dtype.type(factor)) @ k.swapaxes(-1, -2)


def _causal(scores: Array) -> Array:
    rows, columns = scores.shape[-2:]
    xp = array_module(scores)
    return xp.triu(xp.full((rows, columns), -math.inf, scores.dtype), 1)


def _additive(mask: Array | None, scores: Array) -> Array | None:
    if mask is None or mask.dtype != np.bool_:
        return mask
    return array_module(scores).where(mask, 0, -math.inf).astype(scores.dtype)
