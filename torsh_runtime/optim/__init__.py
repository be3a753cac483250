"""Provides optimizers, learning rate schedules and clipping for torsh_runtime.nn, named as in
torch."""

from torsh_runtime.optim.adam import Adam, AdamW
from torsh_runtime.optim.clipping import clip_grad_norm_, clip_grad_value_
from torsh_runtime.optim.optimizer import Optimizer
from torsh_runtime.optim.schedules import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    StepLR,
)
from torsh_runtime.optim.sgd import SGD

__all__ = [
    "Adam",
    "AdamW",
    "CosineAnnealingLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "Optimizer",
    "SGD",
    "StepLR",
    "clip_grad_norm_",
    "clip_grad_value_",
]
