"""Marks sections and steps of torch's training loops, with torch's hooks for optimizers."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torsh_runtime.integrations.torch.compiling import leave_alone
from torsh_runtime.monitoring.marks import own_marks

SECTION = "optimizer.step"


@cache
def mark_optimizers() -> None:
    """Mark each optimizer's step() as a section from now on.

    The first optimizer's step also marks a step of the training, unless others mark steps. Calling
    it again does nothing.
    """
    register_optimizer_step_pre_hook(_begin)
    register_optimizer_step_post_hook(_end)


@leave_alone
def _begin(*_: Any) -> None:
    own_marks().begin(SECTION)


@leave_alone
def _end(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    own_marks().end(SECTION)
    own_marks().step_by(optimizer)
