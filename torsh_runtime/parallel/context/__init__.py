"""Context parallelism: each rank has a part of every sequence.

Users call attention, on which ranks agree first. sequence says which rank has which tokens, and
which queries look at which keys. blockwise computes block after block of keys as routes bring them;
kernels and flash (torch's) compute one block. traced has all of it for torch.compile. transformers
and positions are for Hugging Face's models.
"""

from torsh_runtime.parallel.context.attention import context_attention
from torsh_runtime.parallel.context.sequence import context_gather, context_positions, context_shard
from torsh_runtime.parallel.context.transformers import (
    context_batch,
    context_loss,
    context_model,
    register_context_attention,
)

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
