"""Defines the attention layer, and the block that transformers repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torsh_runtime.nn import functional
from torsh_runtime.nn.containers import Sequential
from torsh_runtime.nn.initialisation import xavier_uniform_, zeros_
from torsh_runtime.nn.layers import Dropout, LayerNorm, Linear, new_parameter
from torsh_runtime.nn.module import Module
from torsh_runtime.nn.shaping import permute, reshape, split, unbind
from torsh_runtime.nn.small_layers import GELU


class MultiheadAttention(Module):
    """Applies attention of several heads, with torch's parameters.

    See Vaswani et al., "Attention Is All You Need", 2017.

    Attributes:
        in_proj_weight: The weight (3·embed_dim, embed_dim) of queries, keys and values.
        in_proj_bias: Their bias (3·embed_dim), or None.
        out_proj: The Linear layer behind the heads.
        attend: The attention function, called as functional.scaled_dot_product_attention with
            arguments up to is_causal; replace it if sequences are split over ranks.

    Example:
        ```python
        attention = tr.nn.MultiheadAttention(64, num_heads=4, batch_first=True)
        x = tr.nn.randn(2, 10, 64)
        result, _ = attention(x, x, x, is_causal=True)  # (2, 10, 64)
        ```
    """

    attend: Callable[..., Any] = staticmethod(functional.scaled_dot_product_attention)

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        batch_first: bool = False,
        dtype: Any = None,
    ) -> None:
        """Create the layer.

        Args:
            embed_dim: The width of input and output.
            num_heads: The number of heads.
            dropout: The probability to drop weights in training.
            bias: Whether there are biases.
            batch_first: Whether inputs are (N, length, width) instead of (length, N, width).
            dtype: The parameters' dtype; None is float32.

        Raises:
            ValueError: If the heads do not divide embed_dim.
        """
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"{num_heads} heads do not divide an embedding of {embed_dim}")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.dropout, self.batch_first = dropout, batch_first
        self.in_proj_weight = new_parameter(3 * embed_dim, embed_dim, dtype=dtype)
        in_bias = new_parameter(3 * embed_dim, dtype=dtype) if bias else None
        self.register_parameter("in_proj_bias", in_bias)
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype=dtype)
        xavier_uniform_(self.in_proj_weight)
        if bias:
            zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        attn_mask: Any = None,
        is_causal: bool = False,
    ) -> tuple[Any, None]:
        """Return the result, and None in place of the weights.

        Args:
            query: The queries (L, N, embed_dim), with N first if batch_first, or without N.
            key: The keys (S, N, embed_dim), likewise.
            value: The values (S, N, embed_dim), likewise.
            attn_mask: A mask (L, S), or (N, heads, L, S); True is masked out, as in torch's layer,
                or numbers to add.
            is_causal: Whether position i attends only to positions 0 to i; it needs no mask here.

        Raises:
            ValueError: If shapes do not fit, or if both attn_mask and is_causal are given.
        """
        swap = not self.batch_first and query.ndim == 3
        if query is key and key is value:
            heads = self._split_together(query, swap)
        else:
            heads = self._split_apart((query, key, value), swap)
        mask = _inverted(attn_mask)
        dropout = self.dropout if self.training else 0.0
        mixed = self.attend(heads[0], heads[1], heads[2], mask, dropout, is_causal)
        order = {3: (1, 0, 2), 4: (2, 0, 1, 3) if swap else (0, 2, 1, 3)}[mixed.ndim]
        joined = permute(mixed, order)
        return self.out_proj(reshape(joined, (*joined.shape[:-2], self.embed_dim))), None

    def _split_together(self, x: Any, swap: bool) -> list[Any]:
        """Project one tensor to queries, keys and values by one product."""
        packed = functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        apart = reshape(
            packed, (*x.shape[:-1], 3, self.num_heads, self.embed_dim // self.num_heads)
        )
        return [_heads_first(one, swap) for one in unbind(apart, -3)]

    def _split_apart(self, inputs: tuple[Any, ...], swap: bool) -> list[Any]:
        weights = split(self.in_proj_weight, self.embed_dim)
        biases: Any = (None,) * 3
        if self.in_proj_bias is not None:
            biases = split(self.in_proj_bias, self.embed_dim)
        shape = (self.num_heads, self.embed_dim // self.num_heads)
        projected = map(functional.linear, inputs, weights, biases)
        return [_heads_first(reshape(p, (*p.shape[:-1], *shape)), swap) for p in projected]


def _heads_first(x: Any, swap: bool) -> Any:
    """Return (…, length, heads, width) as (…, heads, length, width); with `swap` from (length,
    N, …)."""
    return permute(x, {3: (1, 0, 2), 4: (1, 2, 0, 3) if swap else (0, 2, 1, 3)}[x.ndim])


def _inverted(mask: Any) -> Any:
    return ~mask.data if mask is not None and mask.data.dtype == bool else mask


class TransformerBlock(Module):
    """Computes x + attention(norm(x)), then x + MLP(norm(x)), normalising first.

    See Xiong et al., "On Layer Normalization in the Transformer Architecture", 2020.

    Example:
        ```python
        block = tr.nn.TransformerBlock(64, num_heads=4, causal=True)
        block(tr.nn.randn(2, 10, 64)).shape  # (2, 10, 64)
        ```
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int | None = None,
        dropout: float = 0.0,
        causal: bool = False,
        bias: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        """Create the block.

        Args:
            embed_dim: The width of input and output.
            num_heads: The number of heads.
            hidden_dim: The width within the MLP; None is 4·embed_dim.
            dropout: The probability to drop weights and results in training.
            causal: Whether positions attend only to themselves and earlier ones.
            bias: Whether layers and norms have biases.
            dtype: The parameters' dtype; None is float32.

        Raises:
            ValueError: If the heads do not divide embed_dim.
        """
        super().__init__()
        hidden = 4 * embed_dim if hidden_dim is None else hidden_dim
        self.causal = causal
        self.norm1 = LayerNorm(embed_dim, bias=bias, dtype=dtype)
        self.attention = MultiheadAttention(
            embed_dim, num_heads, dropout, bias, batch_first=True, dtype=dtype
        )
        self.norm2 = LayerNorm(embed_dim, bias=bias, dtype=dtype)
        self.mlp = Sequential(
            Linear(embed_dim, hidden, bias, dtype=dtype),
            GELU("tanh"),
            Linear(hidden, embed_dim, bias, dtype=dtype),
        )
        self.dropout = Dropout(dropout)

    def forward(self, x: Any, attn_mask: Any = None) -> Any:
        """Apply the block.

        Args:
            x: The input (N, L, embed_dim) or (L, embed_dim).
            attn_mask: As in MultiheadAttention.

        Returns:
            The result, of x's shape.

        Raises:
            ValueError: If shapes do not fit, or if there is a mask although the block is causal.
        """
        normed = self.norm1(x)
        mixed, _ = self.attention(
            normed, normed, normed, attn_mask=attn_mask, is_causal=self.causal
        )
        x = x + self.dropout(mixed)
        return x + self.dropout(self.mlp(self.norm2(x)))
