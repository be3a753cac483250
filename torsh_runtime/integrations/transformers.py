"""Defines a callback for transformers' Trainer: `Trainer(..., callbacks=[TorshCallback()])`."""

from __future__ import annotations

from typing import Any

from torsh_runtime import monitoring
from torsh_runtime.elastic.time_limit import time_left
from torsh_runtime.errors import BackendUnavailable
from torsh_runtime.integrations.notices import MADE_ROOM, Notices

try:
    from transformers import TrainerCallback
except ImportError:
    raise BackendUnavailable(
        "The callback for transformers",
        "pip install 'transformers>=4.50' (tried: 5.24)",
    ) from None


class TorshCallback(TrainerCallback):
    """Reports each step to torshrun, and saves a checkpoint on notice.

    A step is reported with the values that the Trainer logs and the time that is left. A notice
    asks the job to make room (SIGTERM, or SIGUSR1 before the end of its time). The callback then
    saves a checkpoint of the current step on all ranks, and ends them with code 75. The next start
    resumes by `trainer.train(resume_from_checkpoint=...)`.
    """

    def __init__(self) -> None:
        self._notices: Notices | None = None
        self._stops = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Start handling notices."""
        self._notices = Notices.begun()

    def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Report the step."""
        monitoring.step(state.global_step, total=state.max_steps)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **named: Any
    ) -> None:
        """Report the logged values with the step that they describe."""
        numbers: dict[str, Any] = {
            name: each for name, each in (logs or {}).items() if isinstance(each, float)
        }
        left = time_left()
        if left is not None:
            numbers["time_left"] = left
        monitoring.step(max(state.global_step - 1, 0), total=state.max_steps, **numbers)

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> Any:
        """Save a checkpoint and stop if a notice asks for it."""
        if self._notices is not None and self._notices.stop_after(state.global_step):
            self._stops = control.should_save = control.should_training_stop = True
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Stop handling notices, and end the process if it was asked to make room."""
        if self._notices is not None:
            self._notices.end()
        if self._stops:
            raise SystemExit(MADE_ROOM)
