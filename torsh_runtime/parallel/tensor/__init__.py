"""Layers of which each rank has a part: tensor parallelism, for models of torch and of nn."""

from torsh_runtime.parallel.tensor.applying import parallelize
from torsh_runtime.parallel.tensor.attention import ParallelAttention
from torsh_runtime.parallel.tensor.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from torsh_runtime.parallel.tensor.loss import vocab_parallel_cross_entropy
from torsh_runtime.parallel.tensor.plan import Attention, Block, Column, Part, Row, Vocabulary

__all__ = [
    "Attention",
    "Block",
    "Column",
    "ColumnParallelLinear",
    "ParallelAttention",
    "Part",
    "Row",
    "RowParallelLinear",
    "VocabParallelEmbedding",
    "Vocabulary",
    "parallelize",
    "vocab_parallel_cross_entropy",
]
