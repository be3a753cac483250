"""A callback for the Trainer of transformers: `Trainer(..., callbacks=[TorshCallback()])`."""

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
    """Tells torshrun each step, with what the Trainer logs and the time that is left; and at a
    notice that the job is to make room (SIGTERM, or SIGUSR1 before the end of its time) saves a
    checkpoint of the step in hand on all ranks, and ends them with code 75. The next start goes on
    by `trainer.train(resume_from_checkpoint=...)`.
    """

    def __init__(self) -> None:
        self._notices: Notices | None = None
        self._stops = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Begin to listen."""
        self._notices = Notices.begun()

    def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Tell the step."""
        monitoring.step(state.global_step, total=state.max_steps)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **named: Any
    ) -> None:
        """Tell what is logged with the step that it is about."""
        numbers: dict[str, Any] = {
            name: each for name, each in (logs or {}).items() if isinstance(each, float)
        }
        left = time_left()
        if left is not None:
            numbers["time_left"] = left
        monitoring.step(max(state.global_step - 1, 0), total=state.max_steps, **numbers)

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> Any:
        """Stop, and save, if that is due."""
        if self._notices is not None and self._notices.stop_after(state.global_step):
            self._stops = control.should_save = control.should_training_stop = True
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Listen no more; end the process if it was to make room."""
        if self._notices is not None:
            self._notices.end()
        if self._stops:
            raise SystemExit(MADE_ROOM)
