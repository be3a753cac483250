"""Attention of which each rank has some heads, without a framework."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Tensor
from torsh_runtime.layout import Shard
from torsh_runtime.parallel.tensor.axis import Axis, axis_of
from torsh_runtime.parallel.tensor.cuts import QueryHeads, cuts, sharded
from torsh_runtime.parallel.tensor.kits import layers_of
from torsh_runtime.parallel.tensor.layer import Layer
from torsh_runtime.parallel.tensor.parts import Layouts
from torsh_runtime.parallel.tensor.plan import Attention
from torsh_runtime.parallel.tensor.streams import drawing_part


class _Heads(Layer):
    """Provides what layers with heads have in common: `head_cuts`, where heads are cut for the
    ranks."""

    dropout: float

    head_cuts: tuple[int, ...]

    @property
    def own_heads(self) -> slice:
        """Return this rank's heads."""
        return slice(*self.head_cuts[self.axis.index : self.axis.index + 2])

    def _own_mask(self, mask: Any) -> Any:
        """Return this rank's part of a mask (L, S), or (…, num_heads, L, S). Raises ConfigError
        for one of a different number of heads."""
        if mask is None or len(mask.shape) < 3 or mask.shape[-3] == 1:
            return mask
        if mask.shape[-3] != self.head_cuts[-1]:
            raise ConfigError(
                f"{self.where}: a mask of shape {tuple(mask.shape)} is not (…, "
                f"{self.head_cuts[-1]} heads, L, S)"
            )
        return mask[..., self.own_heads, :, :]

    def _drawing(self, heads: Any) -> AbstractContextManager[None]:
        """Return a block in which dropout draws for the weights of these heads (…, own heads, L,
        width)."""
        if not self.training or not self.dropout:
            return nullcontext()
        return drawing_part(heads, self.axis, -3, self.head_cuts)


class MultiheadAttention(_Heads):
    """A framework's layer of this name, whose heads are cut; its out_proj is Row's."""

    embed_dim: int
    num_heads: int
    out_proj: Any

    @classmethod
    def shards(cls, plain: Any, entry: Attention, axis: Axis) -> dict[str, Shard]:
        width = plain.embed_dim
        found = sharded(3 * width, axis.size, width // plain.num_heads, (width,) * 3)
        return {"in_proj_weight": found, "in_proj_bias": found}

    def become(self, entry: Attention, axis: Axis, where: str, lie: Layouts) -> None:
        super().become(entry, axis, where, lie)
        self.head_cuts = cuts(self.num_heads, axis.size)
        self.head_dim = self.embed_dim // self.num_heads

    def _all_entered(self, *inputs: Any) -> list[Any]:
        """Return the inputs, which each rank may use in its own way."""
        for each in inputs:
            self._check(each, self.whole_dim, "all features")
        return [self._entered(each, self.entry.sequence_dim) for each in inputs]

    @property
    def whole_dim(self) -> int:
        """Return the width of inputs and output."""
        width: int = self.out_proj.out_features
        return width


class ParallelAttention(_Heads):
    """Computes self-attention of several heads, of which each rank has some.

    See Vaswani et al., "Attention Is All You Need", 2017. Several heads may look at one head of
    keys and values (Ainslie et al., "GQA", 2023). If there are fewer of the latter than ranks, all
    ranks have their weights, use those that their own heads look at, and sum the gradients. The
    layers are q_proj, k_proj, v_proj, out_proj.

    Example:
        ```python
        attention = tr.ParallelAttention(512, num_heads=8, num_kv_heads=2, mesh=mesh)
        output = attention(input)  # (batch, length, 512), the same on all ranks
        ```
    """

    k_proj: Any
    v_proj: Any

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        num_kv_heads: int | None = None,
        mesh: Any = None,
        sequence_dim: int | None = None,
        dtype: Any = None,
        framework: str | None = None,
    ) -> None:
        """Create the layer.

        Args:
            embed_dim: The width of input and output.
            num_heads: The number of heads, on all ranks together.
            dropout: The probability to drop weights in training.
            bias: Whether the layers have biases.
            num_kv_heads: The number of heads of keys and values; None is num_heads.
            mesh: A mesh with one axis, or with one called "tp", or a group; None is the default
                group.
            sequence_dim: The dimension of input and output of which each rank has an equal part;
                None if all have all.
            dtype: The dtype of the parameters; None is the framework's default.
            framework: "torch" or "nn"; None is torch if it is loaded.

        Raises:
            ConfigError: On all ranks if they were not seeded alike, and for heads that do not fit.
        """
        super().__init__()
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        _check_heads(embed_dim, num_heads, kv_heads)
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, kv_heads
        self.head_dim, self.dropout = embed_dim // num_heads, dropout
        axis = axis_of(mesh)
        self.become(Attention(sequence_dim), axis, type(self).__name__, {})
        heads = QueryHeads(num_heads, kv_heads)
        width = self.head_dim
        found = cuts(embed_dim, axis.size, width * heads.unit(axis.size))
        self.head_cuts = tuple(at // width for at in found)
        keys = heads.own_keys(axis.size, axis.index)
        own = range(num_heads)[self.own_heads]
        is_one_each = len(keys) == len(own)
        self.looks_at = None if is_one_each else [keys.index(each // heads.share) for each in own]
        self._add_layers(bias, dtype)

    def _add_layers(self, bias: bool, dtype: Any) -> None:
        layers, width, embed = layers_of(self.framework), self.head_dim, self.embed_dim
        named: dict[str, Any] = {
            "unit": width,
            "mesh": self.axis,
            "sequence_dim": self.entry.sequence_dim,
            "dtype": dtype,
        }
        column, row, keys = layers.ColumnParallelLinear, layers.RowParallelLinear, self.num_kv_heads
        self.q_proj = column(embed, embed, bias, False, key_value_heads=keys, **named)
        for name in ("k_proj", "v_proj"):
            made = column(embed, width * keys, bias, False, query_heads=self.num_heads, **named)
            setattr(self, name, made)
        self.out_proj = row(embed, embed, bias, key_value_heads=keys, **named)

    def forward(self, input: Tensor, attn_mask: Any = None, is_causal: bool = False) -> Any:
        """Return attention over an input of shape (…, L, embed_dim), in the same shape.

        Args:
            input: The input.
            attn_mask: Booleans (False is ignored) or numbers to add, (L, L) or (…, num_heads, L,
                L).
            is_causal: Whether position i attends only to 0 to i.

        Raises:
            ConfigError: For an input or a mask that does not fit.
            CommError: If an exchange among the ranks fails.

        Example:
            ```python
            attention = tr.ParallelAttention(512, num_heads=8, mesh=mesh)
            output = attention(input, is_causal=True)
            ```
        """
        queries = self._heads_first(self.q_proj(input))
        keys, values = (
            self._looked_at(self._heads_first(layer(input))) for layer in (self.k_proj, self.v_proj)
        )
        mask, dropout = self._own_mask(attn_mask), self.dropout if self.training else 0.0
        with self._drawing(queries):
            mixed = self.functional.scaled_dot_product_attention(
                queries, keys, values, mask, dropout, is_causal
            )
        return self.out_proj(joined(mixed))

    def _heads_first(self, projected: Any) -> Any:
        return heads_first(projected, self.head_dim)

    def _looked_at(self, heads: Any) -> Any:
        """Return the heads that each of the own heads attends to."""
        return heads if self.looks_at is None else heads[..., self.looks_at, :, :]


def heads_first(projected: Any, width: int) -> Any:
    """Return (…, L, heads · width) as (…, heads, L, width)."""
    *lead, features = projected.shape
    return projected.reshape(*lead, features // width, width).transpose(-3, -2)


def joined(heads: Any) -> Any:
    """Return (…, heads, L, width) as (…, L, heads · width)."""
    *lead, count, length, width = heads.shape
    return heads.transpose(-3, -2).reshape(*lead, length, count * width)


def _check_heads(embed_dim: int, num_heads: int, kv_heads: int) -> None:
    for whole, parts, what in (
        (embed_dim, num_heads, "heads do not divide an embedding of"),
        (num_heads, kv_heads, "heads of keys and values do not divide as many of queries:"),
    ):
        if parts < 1 or whole % parts:
            raise ConfigError(f"{parts} {what} {whole}")
