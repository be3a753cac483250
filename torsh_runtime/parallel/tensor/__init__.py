"""Layers of which each rank has a part: tensor parallelism, for models of torch and of nn."""

from torsh_runtime.parallel.tensor.applying import parallelize
from torsh_runtime.parallel.tensor.attention import ParallelAttention
from torsh_runtime.parallel.tensor.embeddings import VocabParallelEmbedding
from torsh_runtime.parallel.tensor.layers import ColumnParallelLinear, RowParallelLinear
from torsh_runtime.parallel.tensor.loss import vocab_parallel_cross_entropy
from torsh_runtime.parallel.tensor.plan import (
    Attention,
    Block,
    Column,
    Cut,
    Experts,
    Heads,
    Part,
    Row,
    Scatter,
    Shared,
    Summed,
    Vocabulary,
    Whole,
)

__all__ = [
    "Attention",
    "Block",
    "Column",
    "ColumnParallelLinear",
    "Cut",
    "Experts",
    "Heads",
    "ParallelAttention",
    "Part",
    "Row",
    "RowParallelLinear",
    "Scatter",
    "Shared",
    "Summed",
    "VocabParallelEmbedding",
    "Vocabulary",
    "Whole",
    "parallelize",
    "vocab_parallel_cross_entropy",
]
