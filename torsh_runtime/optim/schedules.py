"""Computes learning rates as functions of the number of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torsh_runtime.optim.optimizer import Optimizer

Factor = Callable[[int], float]


class LRScheduler:
    """Sets the "lr" of an optimizer's groups, now and at each step(). Subclasses define rate().

    Attributes: base_lrs, last_epoch (steps made).
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        groups = optimizer.param_groups
        self.base_lrs: list[Any] = [group.setdefault("initial_lr", group["lr"]) for group in groups]
        self.last_epoch = 0
        self._set()

    def rate(self, base: float, group: int) -> float:
        """Return a group's learning rate after last_epoch steps; `base` is the initial rate."""
        raise NotImplementedError(f"{type(self).__name__} defines no rate()")

    def step(self) -> None:
        """Set the next rate. Call this after the optimizer's step()."""
        self.last_epoch += 1
        self._set()

    def get_last_lr(self) -> list[float]:
        """Return the current rates of all groups."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return what load_state_dict() needs; JSON can represent it."""
        return {"base_lrs": list(self.base_lrs), "last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what state_dict() returned."""
        self.base_lrs = list(state_dict["base_lrs"])
        self.last_epoch = state_dict["last_epoch"]
        self._set()

    def _set(self) -> None:
        groups = self.optimizer.param_groups
        for number, (group, base) in enumerate(zip(groups, self.base_lrs, strict=True)):
            group["lr"] = self.rate(base, number)


class LambdaLR(LRScheduler):
    """Multiplies the initial rate by lr_lambda(steps); one function, or one for each group."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Factor | Sequence[Factor]) -> None:
        count = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != count:
            raise ValueError(f"{len(self.lr_lambdas)} functions for {count} groups")
        super().__init__(optimizer)

    def rate(self, base: float, group: int) -> float:
        """Return the group's rate."""
        return base * self.lr_lambdas[group](self.last_epoch)


class StepLR(LRScheduler):
    """Multiplies the rate by gamma after every step_size steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer)

    def rate(self, base: float, group: int) -> float:
        """Return the group's rate."""
        return float(base * self.gamma ** (self.last_epoch // self.step_size))


class CosineAnnealingLR(LRScheduler):
    """Follows half a cosine wave from the initial rate to eta_min in T_max steps, and back
    (Loshchilov and Hutter, "SGDR", 2017).
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:  # noqa: N803
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer)

    def rate(self, base: float, group: int) -> float:
        """Return the group's rate."""
        wave = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return self.eta_min + (base - self.eta_min) * wave


class LinearLR(LRScheduler):
    """Warms up linearly from start_factor to end_factor times the initial rate.

    This takes total_iters steps.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
    ) -> None:
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = total_iters
        super().__init__(optimizer)

    def rate(self, base: float, group: int) -> float:
        """Return the group's rate."""
        done = min(self.last_epoch / self.total_iters, 1)
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)
