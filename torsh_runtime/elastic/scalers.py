"""Lets commit() call optimizers by torch's GradScaler."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from torsh_runtime.errors import ConfigError


def is_scaler(part: object) -> bool:
    """Return whether a part is an enabled GradScaler of torch's, or of a subclass."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(part, torch.amp.GradScaler) and part.is_enabled()


def problem_of_scaler(part: Any, is_sharded: bool) -> str:
    """Return why a part that scales losses cannot be recovered; "" if it can, or does not."""
    if type(part).__name__ == "ShardedGradScaler":
        return "it communicates in step(), after all ranks have voted: use bfloat16"
    if not is_scaler(part):
        return ""
    if is_sharded:
        return "ranks have other gradients of sharded models, and may scale differently"
    if not hasattr(part, "_per_optimizer_states"):
        return f"torch {sys.modules['torch'].__version__}'s has no _per_optimizer_states to reset"
    return ""


class Stepping:
    """Calls the optimizers of a training, by its GradScaler if it has one."""

    def __init__(self, optimizers: Sequence[Any], parts: Iterable[Any]) -> None:
        """Find the scaler. Raises ConfigError if there are several."""
        self._optimizers, scalers = optimizers, [each for each in parts if is_scaler(each)]
        if len(scalers) > 1:
            raise ConfigError(
                "tr.elastic.join() was given several GradScalers, and step.commit() cannot tell "
                "which is whose: use one for all optimizers"
            )
        self._scaler: Any = scalers[0] if scalers else None

    def check(self) -> None:
        """Raise ConfigError if losses were not scaled, before ranks rely on this step."""
        if self._scaler is not None and self._scaler._scale is None:
            raise ConfigError(
                "tr.elastic.join() was given a GradScaler, and no loss was scaled: write "
                "scaler.scale(loss).backward(), or leave the scaler out"
            )

    def step(self) -> None:
        """Call the optimizers. With a scaler those whose gradients are finite, and update it."""
        scaled = [each for each in self._optimizers if self._scaler is not None and _is_due(each)]
        for optimizer in self._optimizers:
            if optimizer in scaled:
                self._scaler.step(optimizer)
            else:
                optimizer.step()
        if scaled:
            self._scaler.update()

    def begin_anew(self) -> None:
        """Forget which gradients were unscaled in a step that is to be repeated."""
        if self._scaler is not None:
            self._scaler._per_optimizer_states.clear()


def _is_due(optimizer: Any) -> bool:
    """Return whether an optimizer has a gradient: a scaler refuses one that has none."""
    groups = (group["params"] for group in optimizer.param_groups)
    return any(each.grad is not None for parameters in groups for each in parameters)
