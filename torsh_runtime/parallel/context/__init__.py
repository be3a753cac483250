"""Context parallelism: each rank has a part of every sequence.

Users call attention; plan makes ranks agree. batch and sequence divide batches and gather them;
transformers, masks and positions are for Hugging Face's models. chunks (which rank has which
tokens), and tasks and bands (which queries look at which keys), are pure. order reorders tokens;
blockwise computes block after block of keys, which routes carry between ranks; kernels and flash
compute one block, and heads whole sequences of some heads.
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
