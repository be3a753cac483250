"""Computes learning rates over the steps of a training: DeepSpeed's schedules by their names."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.deepspeed.named import with_known

Rates = float | Sequence[float]


class Schedule:
    """Sets the learning rates of an optimizer's groups. Call step() after each optimizer step."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.last_batch_iteration = -1

    @abstractmethod
    def rates(self, step: int) -> list[float]:
        """Return each group's rate for the step that follows `step` + 1 others; `step` is -1 at
        first.
        """

    def betas(self, step: int) -> tuple[float, float] | None:
        """Return the betas of all groups for that step; None leaves them unchanged."""
        del step
        return None

    def get_last_lr(self) -> list[float]:
        """Return the optimizer's current rates."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self) -> None:
        """Set the rates of the next step."""
        self.last_batch_iteration += 1
        self._set()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for load_state_dict()."""
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the state that state_dict() returned, and set its rates."""
        self.last_batch_iteration = int(state_dict["last_batch_iteration"])
        self._set()

    def _set(self) -> None:
        step = self.last_batch_iteration
        betas = self.betas(step)
        for group, rate in zip(self.optimizer.param_groups, self.rates(step), strict=True):
            group["lr"] = rate
            if betas is not None:
                group["betas"] = betas

    def _of_groups(self, name: str, given: Rates) -> list[float]:
        """Return one value for each group. Raises ConfigError if the numbers differ."""
        count = len(self.optimizer.param_groups)
        found = [given] * count if isinstance(given, int | float) else [*given]
        if len(found) != count:
            raise ConfigError(f"{name} has {len(found)} values, and the optimizer {count} groups")
        return list(map(float, found))


class LRRangeTest(Schedule):
    """Raises rates from a small one, to find out which rate is too large."""

    def __init__(
        self,
        optimizer: Any,
        lr_range_test_min_lr: Rates = 1e-3,
        lr_range_test_step_size: int = 2000,
        lr_range_test_step_rate: float = 1.0,
        lr_range_test_staircase: bool = False,
    ) -> None:
        super().__init__(optimizer)
        self._least = self._of_groups("lr_range_test_min_lr", lr_range_test_min_lr)
        self._size = _positive("lr_range_test_step_size", lr_range_test_step_size)
        self._growth, self._in_stairs = lr_range_test_step_rate, lr_range_test_staircase
        self._set()

    def rates(self, step: int) -> list[float]:
        """Return each group's rate, as Schedule.rates() describes."""
        interval = (step + 1) / self._size
        interval = math.floor(interval) if self._in_stairs else interval
        return [each * (1 + self._growth * interval) for each in self._least]


class OneCycle(Schedule):
    """Moves rates up and down once while momentum moves down and up, and then decays them."""

    def __init__(
        self,
        optimizer: Any,
        cycle_min_lr: Rates,
        cycle_max_lr: Rates,
        decay_lr_rate: float = 0.0,
        cycle_first_step_size: int = 2000,
        cycle_second_step_size: int | None = None,
        cycle_first_stair_count: int = 0,
        cycle_second_stair_count: int | None = None,
        decay_step_size: int = 0,
        cycle_momentum: bool = True,
        cycle_min_mom: float = 0.8,
        cycle_max_mom: float = 0.9,
        decay_mom_rate: float = 0.0,
    ) -> None:
        super().__init__(optimizer)
        self._low = self._of_groups("cycle_min_lr", cycle_min_lr)
        self._high = self._of_groups("cycle_max_lr", cycle_max_lr)
        first = _positive("cycle_first_step_size", cycle_first_step_size)
        second = first if cycle_second_step_size is None else int(cycle_second_step_size)
        stairs = cycle_first_stair_count
        self._sizes = (first, second)
        self._stairs = (
            stairs,
            stairs if cycle_second_stair_count is None else cycle_second_stair_count,
        )
        self._decay_size, self._decay = decay_step_size, decay_lr_rate
        self._momenta = (float(cycle_min_mom), float(cycle_max_mom), float(decay_mom_rate))
        self._moves_momentum = cycle_momentum and "betas" in optimizer.defaults
        self._set()

    def rates(self, step: int) -> list[float]:
        """Return each group's rate, as Schedule.rates() describes."""
        after = step - sum(self._sizes) + 1
        if step < 0:
            return self._low
        if after <= 0:
            height = self._height(step + 1)
            return [a + (b - a) * height for a, b in zip(self._low, self._high, strict=True)]
        factor = 1 + self._decay * after / self._decay_size if self._decay_size else 1.0
        return [each / factor for each in self._low]

    def betas(self, step: int) -> tuple[float, float] | None:
        """Return the betas of all groups, or None without cycled momentum."""
        if not self._moves_momentum:
            return None
        low, high, decay = self._momenta
        after = step - sum(self._sizes) + 1
        if step < 0:
            return low, 0.99
        if after <= 0:
            return high - (high - low) * self._height(step + 1), 0.99
        return high * (1 + decay * after / self._decay_size if self._decay_size else 1.0), 0.99

    def _height(self, step: int) -> float:
        """Return the height in the cycle, from 0 at both ends to 1 between its halves."""
        first, second = self._sizes
        place = step % (first + second)
        is_first = place <= first
        height = place / first if is_first else (first + second - place) / second
        stairs = self._stairs[0 if is_first else 1]
        return math.floor(height * stairs + 1e-9) / stairs if stairs else height


class WarmupLR(Schedule):
    """Raises rates during a warmup, and then keeps them."""

    def __init__(
        self,
        optimizer: Any,
        warmup_min_lr: Rates = 0.0,
        warmup_max_lr: Rates | None = None,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
    ) -> None:
        super().__init__(optimizer)
        own = self.get_last_lr()
        self._low = self._of_groups("warmup_min_lr", warmup_min_lr)
        high = own if warmup_max_lr is None else warmup_max_lr
        self._high = self._of_groups("warmup_max_lr", high)
        self._warmup = _Warmup(warmup_num_steps, warmup_type)
        self._set()

    def rates(self, step: int) -> list[float]:
        """Return each group's rate, as Schedule.rates() describes."""
        share = 0.0 if step < 0 else self._share(step)
        return [a + (b - a) * share for a, b in zip(self._low, self._high, strict=True)]

    def _share(self, step: int) -> float:
        return self._warmup.share(step) if step < self._warmup.steps else 1.0


class WarmupDecayLR(WarmupLR):
    """Raises rates during a warmup, and then lowers them linearly to the smallest one."""

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_lr: Rates = 0.0,
        warmup_max_lr: Rates | None = 0.001,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
    ) -> None:
        self._total = _positive("total_num_steps", total_num_steps)
        super().__init__(optimizer, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type)

    def _share(self, step: int) -> float:
        warmup = self._warmup
        if step < warmup.steps:
            return warmup.share(step)
        return max(0.0, (self._total - step) / max(1.0, self._total - warmup.steps))


class WarmupCosineLR(Schedule):
    """Multiplies the optimizer's rates by a factor that grows, and then falls along a cosine."""

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_ratio: float = 0.0,
        warmup_num_steps: int = 1000,
        cos_min_ratio: float = 0.0001,
        warmup_type: str = "log",
    ) -> None:
        super().__init__(optimizer)
        self._own = self.get_last_lr()
        self._total = _positive("total_num_steps", total_num_steps)
        self._ratios = (warmup_min_ratio, cos_min_ratio)
        self._warmup = _Warmup(warmup_num_steps, warmup_type)
        self._set()

    def rates(self, step: int) -> list[float]:
        """Return each group's rate, as Schedule.rates() describes."""
        factor = 0.0 if step < 0 else self._factor(step)
        return [each * factor for each in self._own]

    def _factor(self, step: int) -> float:
        first, last = self._ratios
        if step < self._warmup.steps:
            return first + self._warmup.share(step) * (1 - first)
        length = max(1, self._total - self._warmup.steps)
        progress = min(1.0, (step - self._warmup.steps + 1) / length)
        return max(0.0, last + (1 - last) * (1 + math.cos(math.pi * progress)) / 2)


class _Warmup:
    """Computes the progress of a warmup, from 0 to 1."""

    def __init__(self, steps: int, kind: str) -> None:
        if kind not in ("log", "linear"):
            raise ConfigError(f"warmup_type is {kind!r}: log or linear")
        self.steps = max(2, _positive("warmup_num_steps", steps))
        self._is_linear = kind == "linear"

    def share(self, step: int) -> float:
        if self._is_linear:
            return step / self.steps
        return math.log(step + 1) / math.log(self.steps)


_OWN = {each.__name__: each for each in (LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR)}
_OWN["WarmupCosineLR"] = WarmupCosineLR  # type: ignore[assignment]


def check_schedule(kind: str, params: Mapping[str, Any]) -> None:
    """Raise ConfigError for an unknown schedule, or for arguments that it does not take."""
    made = _class_of(kind)
    with_known(f"scheduler.params of {kind}", made, params)


def make_schedule(kind: str, params: Mapping[str, Any], optimizer: Any) -> Any:
    """Make a schedule by its name in a configuration.

    Raises ConfigError if it rejects its arguments.
    """
    made = _class_of(kind)
    try:
        return made(optimizer, **params)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"scheduler.params do not make a {kind}: {error}") from None


def _class_of(kind: str) -> Any:
    if kind in _OWN:
        return _OWN[kind]
    found = getattr(torch.optim.lr_scheduler, kind, None)
    if not inspect.isclass(found) or kind.startswith("_"):
        raise ConfigError(
            f"scheduler.type is {kind!r}: it may be {', '.join(_OWN)}, or one of "
            f"torch.optim.lr_scheduler"
        )
    return found


def _positive(name: str, given: float) -> int:
    if given <= 0 or given % 1:
        raise ConfigError(f"{name} is {given}, and must be a whole number of 1 or more")
    return int(given)
