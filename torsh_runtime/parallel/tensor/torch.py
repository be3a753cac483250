"""The layers for models of torch."""

from __future__ import annotations

from itertools import pairwise
from types import NoneType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.torch.compiling import is_traced
from torsh_runtime.integrations.torch.marks import marks_of
from torsh_runtime.integrations.torch.modes import has_modes
from torsh_runtime.layout import Shard
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.tensor import (
    anyone,
    attention,
    embeddings,
    experts,
    heads,
    layer,
    layers,
    on_part,
)
from torsh_runtime.parallel.tensor.attention import heads_first, joined
from torsh_runtime.parallel.tensor.axis import Axis
from torsh_runtime.parallel.tensor.balance import count_all_tokens as count_all_tokens
from torsh_runtime.parallel.tensor.changes import refuse_changes as refuse_changes
from torsh_runtime.parallel.tensor.cuts import cuts
from torsh_runtime.parallel.tensor.kinds import calls_forward, joined_class, output_dim
from torsh_runtime.parallel.tensor.mixing import watch_features as watch_features
from torsh_runtime.parallel.tensor.overlap import deferred
from torsh_runtime.parallel.tensor.parts import Layouts, mark_part
from torsh_runtime.parallel.tensor.plan import (
    Attention,
    Block,
    Column,
    Entry,
    Experts,
    Heads,
    Own,
    Part,
    Row,
    Scatter,
    Shared,
    Summed,
    Vocabulary,
    Whole,
)
from torsh_runtime.parallel.tensor.state import own_parts, put_whole
from torsh_runtime.parallel.tensor.traced import check_rows, compare
from torsh_runtime.parallel.tensor.trying import number_of_experts as number_of_experts


def _added(summed: Tensor, bias: Tensor) -> Tensor:
    """Add in place if possible. A subclass's sum is a view of its values, for which torch has no
    in-place addition."""
    if is_traced():
        return summed + bias
    is_plain = type(summed) is Tensor and type(bias) in (Tensor, nn.Parameter)
    return summed.add_(bias) if is_plain and not has_modes() else summed + bias


class _OfTorch(layer.Layer):
    framework = "torch"
    functional: ClassVar[Any] = functional
    compare = staticmethod(compare)
    deferred = staticmethod(deferred)
    added = staticmethod(_added)

    def _put_whole(
        self, state: Any, prefix: str = "", keep_vars: bool = False, *, destination: Any = None
    ) -> None:
        put_whole(self, state, prefix, keep_vars)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        for name, layout in self.parameter_layouts.items():  # copies of parameters have no marks
            parameter = getattr(self, name)
            if marks_of(parameter) is None:
                mark_part(parameter, layout, self.axis, f"{self.where}.{name}")

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *others: Any
    ) -> None:
        # Also of a state with whole tensors, of which this rank takes its parts.
        is_assigned = local_metadata.get("assign_to_params_buffers", False)
        own = own_parts(self, state_dict, prefix, is_assigned)
        super()._load_from_state_dict(own, prefix, local_metadata, *others)  # type: ignore[misc]


class ColumnParallelLinear(_OfTorch, layers.ColumnParallelLinear, nn.Linear):
    """Cuts the output features of torch's Linear."""


class RowParallelLinear(_OfTorch, layers.RowParallelLinear, nn.Linear):
    """Cuts the input features of torch's Linear."""


class ColumnOfAny(_OfTorch, layers.ColumnParallelLinear):
    """Cuts the output features of a class that computes what Linear does."""


class RowOfAny(_OfTorch, layers.RowParallelLinear):
    """Cuts the input features of a class that computes what Linear does."""


class ColumnOfAnyTransposed(ColumnOfAny):
    """Cuts the output features of a class whose weight is transposed."""

    output_dim = 1


class RowOfAnyTransposed(RowOfAny):
    """Cuts the input features of a class whose weight is transposed."""

    output_dim = 1


class ColumnParallelEmbedding(_OfTorch, embeddings.ColumnParallelEmbedding, nn.Embedding):
    """Cuts the columns of torch's Embedding."""


class OfAny(_OfTorch, anyone.AnyLayer):
    """Keeps the forward() of any module of torch, whose parameters are cut or shared."""


class PartOfAny(_OfTorch, anyone.PartOfAny):
    """Lets any module of torch compute on a part."""


class SummedOfAny(_OfTorch, anyone.SummedLayer):
    """Lets any module of torch compute a part of a sum."""


class ScatteredOfAny(_OfTorch, anyone.ScatteredLayer):
    """Gives any module of torch a part of its input."""


class WholeOfAny(_OfTorch, anyone.WholeLayer):
    """Gives any module of torch the whole sequence."""


class ExpertsOfAny(_OfTorch, experts.ExpertsOfAny):
    """Spreads the experts of any module of torch."""


class AttentionOfAny(_OfTorch, heads.AttentionOfAny):
    """Cuts the heads of any attention of torch."""


class ParallelAttention(_OfTorch, attention.ParallelAttention, nn.Module):
    """Cuts the heads of attention in torch."""


class LayerNormOnPart(_OfTorch, on_part.LayerNormOnPart, nn.LayerNorm):
    """Normalizes this rank's part like torch's LayerNorm."""


class RMSNormOnPart(_OfTorch, on_part.RMSNormOnPart, nn.RMSNorm):
    """Normalizes this rank's part like torch's RMSNorm."""


class EmbeddingOnPart(_OfTorch, on_part.EmbeddingOnPart, nn.Embedding):
    """Returns a part of the output of torch's Embedding."""


class DropoutOnPart(_OfTorch, on_part.DropoutOnPart, nn.Dropout):
    """Drops elements of a part like torch's Dropout."""


class VocabParallelEmbedding(_OfTorch, embeddings.VocabParallelEmbedding, nn.Embedding):
    """Cuts the rows of torch's Embedding."""

    def own_places(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        check_rows(indices, self.rows, self.where)
        elsewhere = (indices < self.start) | (indices >= self.end)
        return (indices - self.start).masked_fill(elsewhere, 0), elsewhere[..., None]


class MultiheadAttention(_OfTorch, attention.MultiheadAttention, nn.MultiheadAttention):
    """Cuts the heads of torch's MultiheadAttention."""

    @classmethod
    def shards(cls, plain: Any, entry: Attention, axis: Axis) -> dict[str, Shard]:
        if not plain._qkv_same_embed_dim or plain.bias_k is not None or plain.add_zero_attn:
            raise ConfigError("kdim, vdim, add_bias_kv and add_zero_attn are not cut")
        return super().shards(plain, entry, axis)

    def become(self, entry: Attention, axis: Axis, where: str, lie: Layouts) -> None:
        super().become(entry, axis, where, lie)
        self._qkv_same_embed_dim = False  # encoders then call this, and no kernel of their own

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return what torch.nn.MultiheadAttention does, with this rank's heads."""
        is_batched = query.dim() == 3
        heads = [self._heads(each) for each in self._projected(query, key, value)]
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        is_plain = is_causal and key_padding_mask is None and not need_weights
        mask = None if is_plain else self._mask(attn_mask, key_padding_mask, heads[0])
        with self._drawing(heads[0]):
            mixed, weights = self._mixed(heads, mask, is_plain, need_weights)
        result = joined(mixed)
        if not is_batched:
            result = result[0]
        elif not self.batch_first:
            result = result.transpose(0, 1)
        if weights is not None:
            weights = self._whole(weights, average_attn_weights)
            weights = weights if is_batched else weights[0]
        return self.out_proj(result), weights

    def _projected(self, *inputs: Tensor) -> list[Tensor]:
        """Return queries, keys and values of the own heads."""
        query, key, value = self._all_entered(*inputs)
        if query is key is value:
            packed = functional.linear(query, self.in_proj_weight, self.in_proj_bias)
            return list(packed.chunk(3, -1))
        weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return list(map(functional.linear, (query, key, value), weights, biases))

    def _heads(self, projected: Tensor) -> Tensor:
        """Return the projected features as (N, own heads, L, head_dim)."""
        if projected.dim() == 2:
            projected = projected[None]
        elif not self.batch_first:
            projected = projected.transpose(0, 1)
        found: Tensor = heads_first(projected, self.head_dim)
        return found

    def _mask(self, given: Tensor | None, padding: Tensor | None, like: Tensor) -> Tensor | None:
        """Return what is to be added to the scores (N, own heads, L, S), or None."""
        found = None
        if given is not None:
            found = _additive(given, like)
            if found.dim() == 3:
                found = self._own_mask(found.view(-1, self.num_heads, *found.shape[1:]))
        if padding is not None:
            columns = _additive(padding, like).view(-1, 1, 1, padding.shape[-1])
            found = columns if found is None else found + columns
        return found

    def _mixed(
        self, heads: list[Tensor], mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        dropout = self.dropout if self.training else 0.0
        query, key, value = heads
        if not need_weights:
            attend = functional.scaled_dot_product_attention
            return attend(query, key, value, mask, dropout, is_causal), None
        scores = query @ key.transpose(-2, -1) / self.head_dim**0.5
        weights = (scores if mask is None else scores + mask).softmax(-1)
        weights = functional.dropout(weights, dropout)
        return weights @ value, weights

    def _whole(self, weights: Tensor, is_averaged: bool) -> Tensor:
        """Return the weights of all heads, or their average over heads."""
        group = self.axis.group
        found: Tensor
        if is_averaged:
            found = regions.reduce(weights.sum(1) / self.num_heads, group)
        else:
            sizes = [end - start for start, end in pairwise(self.head_cuts)]
            found = regions.gather(weights, group, 1, sizes)
        return found


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """Return the mask as numbers to add: -inf for True, which is not attended to."""
    if mask.dtype is not torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, float("-inf"))


def within_block(module: Any, entry: Block, ranks: int) -> dict[str, Entry]:
    """Return what the entry means for the modules below a block."""
    dim = entry.sequence_dim
    hidden = cuts(module.linear1.out_features, ranks)
    found: dict[str, Entry] = {
        "self_attn": Attention(dim),
        "linear1": Column(sequence_dim=dim),
        "linear2": Row(sequence_dim=dim),
        "dropout": Part(-1, hidden),
    }
    if isinstance(module, nn.TransformerDecoderLayer):
        found["multihead_attn"] = Attention(dim)
    if dim is not None:
        names = ("norm1", "norm2", "norm3", "dropout1", "dropout2", "dropout3")
        found |= {name: Part(dim) for name in names if hasattr(module, name)}
    return found


def kind_of(where: str, module: Any, entry: Any) -> Any:
    """Return the class that a module becomes (see applying). Raises ConfigError for an entry
    that is not for it."""
    if isinstance(module, layer.Layer):
        raise ConfigError(f"{where!r} is a {type(module).__name__} that has its part already")
    if isinstance(entry, Own):
        if "forward" in vars(module):
            raise ConfigError(f"{where!r} has a forward() of its own beside its class's")
        return joined_class(_OF_ANY[type(entry.entry)], type(module))
    plain = LAYERS.get(type(entry), {})
    found = layer.plain_kind(plain, module)
    if isinstance(module, layer.Layer) or "forward" in vars(module):
        raise layer.unfit(where, module, entry, plain)
    is_own = found is not None and type(module).forward is not found.forward
    if found is not None and not is_own:
        return plain[found]
    if isinstance(entry, Column | Row):
        dim = output_dim(module)
        if dim is not None:
            return joined_class(_LINEAR[type(entry), dim], type(module))
    if found is not None and not isinstance(entry, Attention) and calls_forward(module):
        return joined_class(plain[found], type(module), is_below=True)
    raise layer.unfit(where, module, entry, plain)


def is_around(module: Any, entry: Entry) -> bool:
    """Return whether an entry is carried out around the module's own forward()."""
    if not isinstance(entry, Part):
        return isinstance(entry, Shared | Summed | Heads | Scatter | Whole | Experts)
    plain = layer.plain_kind(LAYERS[Part], module)
    is_plain = plain is not None and type(module).forward is plain.forward
    return entry.gather_output or not (is_plain or isinstance(module, nn.Embedding))


LAYERS: dict[type[Entry], dict[type, type[layer.Layer]]] = {
    Column: {nn.Linear: ColumnParallelLinear, nn.Embedding: ColumnParallelEmbedding},
    Row: {nn.Linear: RowParallelLinear},
    Vocabulary: {nn.Embedding: VocabParallelEmbedding},
    Attention: {nn.MultiheadAttention: MultiheadAttention},
    Part: {
        nn.LayerNorm: LayerNormOnPart,
        nn.RMSNorm: RMSNormOnPart,
        nn.Dropout: DropoutOnPart,
        nn.Embedding: EmbeddingOnPart,
    },
}
_LINEAR = {
    (Column, 0): ColumnOfAny,
    (Column, 1): ColumnOfAnyTransposed,
    (Row, 0): RowOfAny,
    (Row, 1): RowOfAnyTransposed,
}
_OF_ANY = {
    NoneType: OfAny,
    Shared: OfAny,
    Part: PartOfAny,
    Summed: SummedOfAny,
    Scatter: ScatteredOfAny,
    Heads: AttentionOfAny,
    Whole: WholeOfAny,
    Experts: ExpertsOfAny,
}
BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
