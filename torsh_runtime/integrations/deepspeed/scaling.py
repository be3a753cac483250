"""Scales losses in float16 by the rules of DeepSpeed's fp16 section."""

from __future__ import annotations

from typing import Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import GradientError
from torsh_runtime.integrations.deepspeed.config import LossScale
from torsh_runtime.parallel.scaler import ShardedGradScaler


class LossScaler(ShardedGradScaler):
    """Adapts the loss scale to overflows, by DeepSpeed's rules on top of ShardedGradScaler.

    `hysteresis` - 1 overflows are forgiven, and each further one halves the scale. After each
    `window` steps without an overflow the scale doubles, and overflows are forgiven again.

    Attributes: has_overflown (whether gradients of the last step were not finite).
    """

    def __init__(self, rules: LossScale, process_group: ProcessGroup) -> None:
        super().__init__(rules.static or rules.initial, process_group=process_group)
        self._rules = rules
        self._step_number, self._last_overflow = 0, -1
        self._forgiven = rules.hysteresis
        self.has_overflown = False

    def update(self) -> None:
        """Set the scale of the next step.

        Raises GradientError on all ranks if gradients overflow at the smallest scale.
        """
        if not self._is_finite:
            raise RuntimeError("update() follows step(), which was not called")
        self.has_overflown = not all(self._is_finite.values())
        self._is_finite.clear()
        self._stepped.clear()
        if not self._rules.static:
            self._follow(self._rules)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for load_state_dict()."""
        return {
            **super().state_dict(),
            "step_number": self._step_number,
            "last_overflow": self._last_overflow,
            "forgiven": self._forgiven,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that state_dict() returned, except a static scale."""
        own = self._scale
        super().load_state_dict(state_dict)
        self._scale = own if self._rules.static else self._scale
        self._step_number = int(state_dict["step_number"])
        self._last_overflow = int(state_dict["last_overflow"])
        self._forgiven = int(state_dict["forgiven"])

    def _follow(self, rules: LossScale) -> None:
        if self.has_overflown:
            self._last_overflow = self._step_number
            self._shrink(rules)
        else:
            if rules.refills:
                self._forgiven = rules.hysteresis
            since = self._step_number - self._last_overflow - 1
            if since > 0 and since % rules.window == 0:
                self._forgiven = rules.hysteresis
                self._scale *= 2
        self._step_number += 1

    def _shrink(self, rules: LossScale) -> None:
        if self._forgiven > 1:
            self._forgiven -= 1
            return
        if self._scale <= rules.minimum:
            rank = 0 if self.process_group is None else self.process_group.rank
            raise GradientError(
                {
                    rank: f"gradients are not finite, and the scale of losses is {self._scale:g}, "
                    f"the smallest (fp16.min_loss_scale): the model computes what float16 cannot "
                    f"hold; use bf16, or a smaller learning rate"
                }
            )
        self._scale = max(self._scale / 2, rules.minimum)
