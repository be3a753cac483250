"""Computes learning rates as functions of the number of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torsh_runtime.optim.optimizer import Optimizer

Factor = Callable[[int], float]


class LRScheduler:
    """Sets the "lr" of an optimizer's groups, now and at each step(). Subclasses define rate().

    Attributes:
        base_lrs: The initial rates of the groups.
        last_epoch: The number of steps made.

    Example:
        ```python
        class Halving(tr.optim.LRScheduler):
            def rate(self, base, group):
                return base / 2**self.last_epoch

        schedule = Halving(optimizer)
        ```
    """

    def __init__(self, optimizer: Optimizer) -> None:
        """Set the initial rates.

        Args:
            optimizer: The optimizer.
        """
        self.optimizer = optimizer
        groups = optimizer.param_groups
        self.base_lrs: list[Any] = [group.setdefault("initial_lr", group["lr"]) for group in groups]
        self.last_epoch = 0
        self._set()

    def rate(self, base: float, group: int) -> float:
        """Return a group's learning rate after last_epoch steps.

        Args:
            base: The initial rate.
            group: The group's number.

        Raises:
            NotImplementedError: If the subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no rate()")

    def step(self) -> None:
        """Set the next rate. Call this after the optimizer's step().

        Example:
            ```python
            optimizer.step()
            schedule.step()
            ```
        """
        self.last_epoch += 1
        self._set()

    def get_last_lr(self) -> list[float]:
        """Return the current rates of all groups."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return what load_state_dict() needs; JSON can represent it."""
        return {"base_lrs": list(self.base_lrs), "last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what state_dict() returned.

        Args:
            state_dict: The state.
        """
        self.base_lrs = list(state_dict["base_lrs"])
        self.last_epoch = state_dict["last_epoch"]
        self._set()

    def _set(self) -> None:
        groups = self.optimizer.param_groups
        for number, (group, base) in enumerate(zip(groups, self.base_lrs, strict=True)):
            group["lr"] = self.rate(base, number)


class LambdaLR(LRScheduler):
    """Multiplies the initial rate by a function of the number of steps.

    Example:
        ```python
        schedule = tr.optim.LambdaLR(optimizer, lambda steps: 0.95**steps)
        optimizer.step()
        schedule.step()
        ```
    """

    def __init__(self, optimizer: Optimizer, lr_lambda: Factor | Sequence[Factor]) -> None:
        """Create the schedule.

        Args:
            optimizer: The optimizer.
            lr_lambda: A function steps -> factor, or one for each group.

        Raises:
            ValueError: If there are not as many functions as groups.
        """
        count = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != count:
            raise ValueError(f"{len(self.lr_lambdas)} functions for {count} groups")
        super().__init__(optimizer)

    def rate(self, base: float, group: int) -> float:
        """Return the rate of the group of this number, whose initial rate is `base`."""
        return base * self.lr_lambdas[group](self.last_epoch)


class StepLR(LRScheduler):
    """Multiplies the rate by gamma after every step_size steps.

    Example:
        ```python
        schedule = tr.optim.StepLR(optimizer, step_size=1000)
        optimizer.step()
        schedule.step()
        ```
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        """Create the schedule.

        Args:
            optimizer: The optimizer.
            step_size: The number of steps.
            gamma: The factor.
        """
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer)

    def rate(self, base: float, group: int) -> float:
        """Return the rate of the group of this number, whose initial rate is `base`."""
        return float(base * self.gamma ** (self.last_epoch // self.step_size))


class CosineAnnealingLR(LRScheduler):
    """Follows half a cosine wave from the initial rate to eta_min in T_max steps, and back.

    See Loshchilov and Hutter, "SGDR", 2017.

    Example:
        ```python
        schedule = tr.optim.CosineAnnealingLR(optimizer, T_max=10_000)
        optimizer.step()
        schedule.step()
        ```
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:  # noqa: N803
        """Create the schedule.

        Args:
            optimizer: The optimizer.
            T_max: The number of steps.
            eta_min: The smallest rate.
        """
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer)

    def rate(self, base: float, group: int) -> float:
        """Return the rate of the group of this number, whose initial rate is `base`."""
        wave = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return self.eta_min + (base - self.eta_min) * wave


class LinearLR(LRScheduler):
    """Warms up linearly from start_factor to end_factor times the initial rate.

    Example:
        ```python
        schedule = tr.optim.LinearLR(optimizer, start_factor=0.1, total_iters=500)
        optimizer.step()
        schedule.step()
        ```
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
    ) -> None:
        """Create the schedule.

        Args:
            optimizer: The optimizer.
            start_factor: The factor of the initial rate at first.
            end_factor: The factor after total_iters steps, and from then on.
            total_iters: The number of steps.
        """
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = total_iters
        super().__init__(optimizer)

    def rate(self, base: float, group: int) -> float:
        """Return the rate of the group of this number, whose initial rate is `base`."""
        done = min(self.last_epoch / self.total_iters, 1)
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)
