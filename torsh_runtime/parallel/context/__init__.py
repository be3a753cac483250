"""Sequences that ranks have parts of.

attention is what users call, plan what ranks agree on; batch and sequence divide batches and bring
them together; transformers, masks and positions are for Hugging Face's models. chunks (pure: who
has which tokens), tasks and bands (pure: who looks at what), order; blockwise (block after block of
keys), routes (how they come), kernels and flash (one block), heads (whole sequences of some heads).
"""

from torsh_runtime.parallel.context.attention import context_attention
from torsh_runtime.parallel.context.batch import context_batch, context_loss
from torsh_runtime.parallel.context.sequence import (
    context_gather,
    context_positions,
    context_shard,
)
from torsh_runtime.parallel.context.transformers import context_model, register_context_attention

__all__ = [
    "context_attention",
    "context_batch",
    "context_gather",
    "context_loss",
    "context_model",
    "context_positions",
    "context_shard",
    "register_context_attention",
]
