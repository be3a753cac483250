"""Sequences that ranks have parts of.

attention is what users call, sequence divides batches and brings them together; chunks (pure: who
has which tokens), tasks (pure: who looks at what), order; blockwise (block after block of keys),
routes (how they come), kernels and flash (one block), heads (whole sequences of some heads).
"""

from torsh_runtime.parallel.context.attention import context_attention
from torsh_runtime.parallel.context.sequence import (
    context_gather,
    context_positions,
    context_shard,
)
from torsh_runtime.parallel.context.transformers import register_context_attention

__all__ = [
    "context_attention",
    "context_gather",
    "context_positions",
    "context_shard",
    "register_context_attention",
]
