"""Scales losses up, so that gradients in float16 do not vanish."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from torsh_runtime.comm.agreement import by_rank
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import framework_of
from torsh_runtime.framework.models import kind_of
from torsh_runtime.framework.optimizer import Optimizer
from torsh_runtime.parallel.groups import group_of


class ShardedGradScaler:
    """Scales losses like torch.amp.GradScaler, for gradients of which each rank has a part.

    See Micikevicius et al., Mixed Precision Training, ICLR 2018. It works with any kind of
    parallelism: if the gradients of one rank are not finite, no rank steps, and all have the same
    scale next. It takes losses and optimizers of torch and of tr.nn. All ranks make the same calls.

    Attributes:
        process_group: The ranks that agree; None if it is not enabled.

    Example:
        ```python
        scaler = tr.ShardedGradScaler()
        scaler.scale(loss).backward()  # or pipeline.step(batch, target, scaler=scaler)
        scaler.step(optimizer)
        scaler.update()
        ```
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        process_group: Any = None,
    ) -> None:
        """Create the scaler.

        Args:
            init_scale: The factor of losses at first.
            growth_factor: Multiplies the scale after growth_interval updates without infinite
                gradients.
            backoff_factor: Multiplies the scale after an update with infinite gradients.
            growth_interval: The number of updates.
            enabled: False does nothing.
            process_group: A group, or a DeviceMesh, of all ranks that have parts or replicas of the
                model, the whole mesh and not some of its axes: a rank that is left out would step
                when others do not. None is the default group.

        Raises:
            ConfigError: For numbers out of range.
        """
        if not (growth_factor > 1.0 and 0.0 < backoff_factor < 1.0 and growth_interval >= 1):
            raise ConfigError(
                f"growth_factor={growth_factor} must be more than 1, backoff_factor="
                f"{backoff_factor} between 0 and 1, growth_interval={growth_interval} at least 1"
            )
        self._scale = float(init_scale)
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval, self._growth_tracker = growth_interval, 0
        self._enabled = enabled
        self.process_group = group_of(process_group) if enabled else None
        self._stepped: set[int] = set()
        self._is_finite: dict[int, bool] = {}
        """Results, by id() of the optimizers whose gradients were divided since the last update."""

    def scale(self, outputs: Any) -> Any:
        """Return a loss times the scale, or each of several.

        Args:
            outputs: The loss, or a list or tuple of losses.

        Example:
            ```python
            scaler.scale(loss).backward()
            ```
        """
        if isinstance(outputs, list | tuple):
            return type(outputs)(map(self.scale, outputs))
        return outputs * self._scale if self._enabled else outputs

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of the optimizer's parameters by the scale, such as to clip them.

        All ranks call it, before step().

        Args:
            optimizer: The optimizer.

        Raises:
            RuntimeError: If that was done since update().
            ConfigError: On all ranks if they have different scales.

        Example:
            ```python
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            tr.clip_grad_norm_(model, 1.0)
            scaler.step(optimizer)
            scaler.update()
            ```
        """
        if not self._enabled:
            return
        if id(optimizer) in self._is_finite:
            raise RuntimeError("gradients were divided already since the last update()")
        is_finite = _multiplied(optimizer, 1.0 / self._scale)
        self._is_finite[id(optimizer)] = self._is_so_everywhere(is_finite)

    def step(self, optimizer: Any, *arguments: Any, **named: Any) -> Any:
        """Call optimizer.step() if all gradients are finite on all ranks.

        All ranks call it.

        Args:
            optimizer: The optimizer.
            *arguments: Arguments of its step().
            **named: Arguments of its step() by name.

        Returns:
            What optimizer.step() returned, or None if it was not called.

        Raises:
            RuntimeError: If that was done since update().
            ConfigError: On all ranks if they have different scales.

        Example:
            ```python
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            ```
        """
        if not self._enabled:
            return optimizer.step(*arguments, **named)
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() was called already since the last update()")
        self._stepped.add(id(optimizer))
        if id(optimizer) not in self._is_finite:
            self.unscale_(optimizer)
        return optimizer.step(*arguments, **named) if self._is_finite[id(optimizer)] else None

    def update(self) -> None:
        """Compute the scale of the next step.

        Raises:
            RuntimeError: If step() or unscale_() was not called before.

        Example:
            ```python
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            ```
        """
        if not self._enabled:
            return
        if not self._is_finite:
            raise RuntimeError("update() follows step(), which was not called")
        self._growth_tracker += 1
        if not all(self._is_finite.values()):
            self._scale *= self._backoff_factor
            self._growth_tracker = 0
        elif self._growth_tracker == self._growth_interval:
            larger = self._scale * self._growth_factor
            self._scale = larger if math.isfinite(larger) else self._scale
            self._growth_tracker = 0
        self._is_finite.clear()
        self._stepped.clear()

    def get_scale(self) -> float:
        """Return the factor of losses; 1 if not enabled."""
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Return whether it does anything."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Return what load_state_dict() takes, with the names and meanings of
        torch.amp.GradScaler's."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from the state of a different scaler.

        Args:
            state_dict: The state of one of this class or of torch.amp.GradScaler.
        """
        if not self._enabled:
            return
        self._scale = float(state_dict["scale"])
        self._growth_factor = float(state_dict["growth_factor"])
        self._backoff_factor = float(state_dict["backoff_factor"])
        self._growth_interval = int(state_dict["growth_interval"])
        self._growth_tracker = int(state_dict["_growth_tracker"])

    def _is_so_everywhere(self, is_so: bool) -> bool:
        """Return whether it is so on all ranks. The same exchange compares the scales, which
        differ if a rank has left out calls. Raises ConfigError then."""
        assert self.process_group is not None, "it is enabled"
        own = np.array([is_so, np.float64(self._scale).view(np.int64)], np.int64)
        everyone = self.process_group.all_gather_numbers(own)
        if (everyone[:, 1] != everyone[0, 1]).any():
            told = list(map(str, everyone[:, 1].view(np.float64).tolist()))
            scales = by_rank(told, self.process_group)
            raise ConfigError(
                f"ranks have scaled their losses differently: {scales}. All have to make the same "
                f"calls of the scaler, with the same options, and load the same state"
            )
        return bool(everyone[:, 0].all())


def scale_of(scaler: Any, ranks: ProcessGroup) -> tuple[float, str]:
    """Return the factor of losses on these ranks, 1 without a scaler, and why they would not
    step alike, or "" if they do."""
    if scaler is None:
        return 1.0, ""
    if not isinstance(scaler, ShardedGradScaler):
        return 1.0, (
            f"scaler is a {type(scaler).__module__}.{type(scaler).__qualname__}, which knows of "
            f"this rank's gradients only: ranks would step where others do not. Pass a "
            f"tr.ShardedGradScaler"
        )
    group = scaler.process_group
    missing = [] if group is None else sorted({*ranks.ranks} - {*group.ranks})
    if not missing:
        return scaler.get_scale(), ""
    return 1.0, (
        f"the scaler's process_group lacks ranks {', '.join(map(str, missing))}, which have parts "
        f"or replicas of the model, and would step where others do not: pass it the whole mesh, "
        f"ShardedGradScaler(process_group=mesh)"
    )


def _gradients(optimizer: Optimizer) -> Iterator[tuple[Any, Any]]:
    """Yield the parameters that have gradients, with these as torch's tensors, or as arrays."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if getattr(parameter.grad, "is_sparse", False):
                parameter.grad = parameter.grad.coalesce()
                values = parameter.grad._values()
                if math.prod(values.shape):
                    yield parameter, values
            elif parameter.grad is not None and math.prod(parameter.grad.shape):
                yield parameter, parameter.grad.data


def _multiplied(optimizer: Optimizer, factor: float) -> bool:
    """Multiply the gradients in place, and return whether all are finite then. It takes one wait
    for each GPU."""
    found = [*_gradients(optimizer)]
    if not found:
        return True
    foreach, by_device = framework_of(found[0][0]).foreach, dict[str, list[Any]]()
    for _, gradient in found:
        by_device.setdefault(kind_of(gradient)[1], []).append(gradient)
    flags = [foreach.unscale_(gradients, factor) for gradients in by_device.values()]
    return not any(any(foreach.tolist(each)) for each in flags)
