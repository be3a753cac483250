"""The layers for models of torsh_runtime.nn."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, ClassVar

from torsh_runtime import nn
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module
from torsh_runtime.nn import functional
from torsh_runtime.nn.arrays import array_module
from torsh_runtime.nn.graph import operand
from torsh_runtime.parallel.tensor import attention, embeddings, layer, layers, on_part
from torsh_runtime.parallel.tensor.axis import Axis
from torsh_runtime.parallel.tensor.parts import Layouts, check_same_input
from torsh_runtime.parallel.tensor.plan import (
    Attention,
    Block,
    Column,
    Entry,
    Part,
    Row,
    Vocabulary,
)


def _compare(tensor: Any, axis: Axis, where: str) -> None:
    check_same_input(operand(tensor), axis, where)


class _OfNn:
    framework = "nn"
    functional: ClassVar[Any] = functional
    compare = staticmethod(_compare)
    added = staticmethod(operator.add)


class ColumnParallelLinear(_OfNn, layers.ColumnParallelLinear, nn.Linear):
    """Cuts the output features of tr.nn's Linear."""


class RowParallelLinear(_OfNn, layers.RowParallelLinear, nn.Linear):
    """Cuts the input features of tr.nn's Linear."""


class ParallelAttention(_OfNn, attention.ParallelAttention, nn.Module):
    """Cuts the heads of attention in tr.nn."""


class LayerNormOnPart(_OfNn, on_part.LayerNormOnPart, nn.LayerNorm):
    """Normalizes this rank's part like tr.nn's LayerNorm."""


class RMSNormOnPart(_OfNn, on_part.RMSNormOnPart, nn.RMSNorm):
    """Normalizes this rank's part like tr.nn's RMSNorm."""


class EmbeddingOnPart(_OfNn, on_part.EmbeddingOnPart, nn.Embedding):
    """Returns a part of the output of tr.nn's Embedding."""


class DropoutOnPart(_OfNn, on_part.DropoutOnPart, nn.Dropout):
    """Drops elements of a part like tr.nn's Dropout."""


class VocabParallelEmbedding(_OfNn, embeddings.VocabParallelEmbedding, nn.Embedding):
    """Cuts the rows of tr.nn's Embedding."""

    def own_places(self, indices: Any) -> tuple[Any, Any]:
        found = operand(indices)
        if found.size:
            check = embeddings.check_range
            check(int(found.min()), int(found.max()), self.rows, self.where)
        elsewhere = (found < self.start) | (found >= self.end)
        places = array_module(found).where(elsewhere, 0, found - self.start)
        return places, elsewhere[..., None]


class MultiheadAttention(_OfNn, attention.MultiheadAttention, nn.MultiheadAttention):
    """Cuts the heads of tr.nn's MultiheadAttention. To that layer the own heads are all heads."""

    def become(self, entry: Attention, axis: Axis, where: str, lie: Layouts) -> None:
        super().become(entry, axis, where, lie)
        heads = self.own_heads
        self.num_heads = heads.stop - heads.start
        self.embed_dim = self.num_heads * self.head_dim

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        attn_mask: Any = None,
        is_causal: bool = False,
    ) -> tuple[Any, None]:
        """Return what nn.MultiheadAttention does, with this rank's heads."""
        inputs = self._all_entered(query, key, value)
        mask = None if attn_mask is None else nn.Tensor(self._own_mask(operand(attn_mask)))
        with self._drawing(inputs[0]):
            return super().forward(*inputs, attn_mask=mask, is_causal=is_causal)


def within_block(module: Any, entry: Block, ranks: int) -> dict[str, Entry]:
    """Return what the entry means for the modules below a block."""
    dim = entry.sequence_dim
    found: dict[str, Entry] = {
        "attention": Attention(dim),
        "mlp.0": Column(sequence_dim=dim),
        "mlp.2": Row(sequence_dim=dim),
    }
    if dim is not None:
        found |= {name: Part(dim) for name in ("norm1", "norm2", "dropout")}
    return found


def kind_of(where: str, module: Any, entry: Any) -> type[layer.Layer]:
    """Return the class that a module becomes (see applying). Raises ConfigError for an entry
    that is not for it."""
    plain = LAYERS.get(type(entry), {})
    found = layer.plain_kind(plain, module)
    is_own = found is None or type(module).forward is not found.forward
    if isinstance(module, layer.Layer) or is_own or "forward" in vars(module):
        raise layer.unfit(where, module, entry, plain)
    return plain[found]


def is_around(module: Any, entry: Entry) -> bool:
    """Return whether an entry is carried out around the module's own forward(): never in nn."""
    return False


LAYERS: dict[type[Entry], dict[type, type[layer.Layer]]] = {
    Column: {nn.Linear: ColumnParallelLinear},
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
BLOCKS = (nn.TransformerBlock,)


def refuse_changes() -> None:
    """Do nothing: libraries that change layers are for models of torch."""


def watch_features(model: Any, axis: Axis) -> None:
    """Do nothing: what nn's functions compute cannot be computed once more beside it."""


def count_all_tokens(model: Module, axis: Axis) -> None:
    """Do nothing: models of transformers have such losses, and those are of torch."""


def number_of_experts(module: Any, counts: Iterable[str]) -> int:
    """Raise ConfigError: modules of experts that are spread are of torch."""
    raise ConfigError(f"it is a {type(module).__name__}, and experts that are spread are torch's")
