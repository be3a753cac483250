"""Provides models over numpy or cupy: autograd, layers and losses, under torch's names.

docs/nn.md is its guide.
"""

from torsh_runtime.nn import functional
from torsh_runtime.nn import initialisation as init
from torsh_runtime.nn.backward import leaves, queue_callback
from torsh_runtime.nn.checkpointing import checkpoint
from torsh_runtime.nn.containers import ModuleList, Sequential
from torsh_runtime.nn.creation import from_numpy, tensor
from torsh_runtime.nn.elementwise import maximum, minimum, where
from torsh_runtime.nn.function import Function
from torsh_runtime.nn.grad_mode import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from torsh_runtime.nn.hooks import RemovableHandle
from torsh_runtime.nn.layers import (
    AvgPool2d,
    Conv2d,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    MaxPool2d,
    RMSNorm,
)
from torsh_runtime.nn.linear_algebra import matmul
from torsh_runtime.nn.module import Module
from torsh_runtime.nn.parameter import Buffer, Parameter
from torsh_runtime.nn.random import get_rng_state, manual_seed, randn, set_rng_state
from torsh_runtime.nn.shaping import concat, stack
from torsh_runtime.nn.small_layers import (
    GELU,
    CrossEntropyLoss,
    Flatten,
    Identity,
    MSELoss,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from torsh_runtime.nn.tensor import Tensor
from torsh_runtime.nn.transformer import MultiheadAttention, TransformerBlock

__all__ = [
    "AvgPool2d",
    "Buffer",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "Function",
    "GELU",
    "Identity",
    "LayerNorm",
    "Linear",
    "MSELoss",
    "MaxPool2d",
    "Module",
    "ModuleList",
    "MultiheadAttention",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "RemovableHandle",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "Tensor",
    "TransformerBlock",
    "checkpoint",
    "concat",
    "enable_grad",
    "from_numpy",
    "functional",
    "get_rng_state",
    "init",
    "is_grad_enabled",
    "leaves",
    "manual_seed",
    "matmul",
    "maximum",
    "minimum",
    "no_grad",
    "queue_callback",
    "randn",
    "set_grad_enabled",
    "set_rng_state",
    "stack",
    "tensor",
    "where",
]
