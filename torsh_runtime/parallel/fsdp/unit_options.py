"""Holds what may be changed of a unit between passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torsh_runtime.parallel.fsdp.fsdp_param import FSDPParam
    from torsh_runtime.parallel.fsdp.fsdp_param_group import FSDPParamGroup


@dataclass(eq=False)
class UnitOptions:
    """Selects how one unit takes part in forward and backward passes."""

    reshard_after_forward: bool | int | None = None
    """Tells whether it is freed between a forward and the backward pass. None: unless it is the
    model's own unit. A number of ranks keep its values meanwhile, each an equal part."""
    is_averaging: bool = True
    """Tells that its gradients are averaged, and not kept for later."""
    averages_replicas: bool = True
    """Tells that they are also averaged over the ranks that have the same part."""
    finds_unused: bool = False
    """Tells that a parameter which this rank has not used counts as one with zero gradients where
    another rank has used it."""
    gradient_scale: Callable[[FSDPParam], float] | None = None
    """Returns what averages of a parameter's gradients are multiplied by."""
    forward_prefetch: list[FSDPParamGroup] = field(default_factory=list)
    """Units to gather when it is called; if empty, what the last forward pass used next."""
    backward_prefetch: list[FSDPParamGroup] = field(default_factory=list)
    """Units to gather when its backward pass begins; if empty, what comes next by order."""
