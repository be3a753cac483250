"""Defines a callback for Lightning's Trainer, which adds it by itself in workers of torshrun.

It is an entry point in Lightning's group "lightning.pytorch.callbacks_factory".
"""

from __future__ import annotations

import math
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from torsh_runtime.elastic.time_limit import time_left
from torsh_runtime.integrations.notices import MADE_ROOM, Notices


def callbacks() -> list[Any]:
    """Return the callbacks for lightning.pytorch."""
    return _callbacks("lightning.pytorch")


def callbacks_of_pytorch_lightning() -> list[Any]:
    """Return the callbacks for pytorch_lightning, the package's older name."""
    return _callbacks("pytorch_lightning")


def _callbacks(package: str) -> list[Any]:
    if not os.environ.get("TORSH_STORE_ENDPOINT"):
        return []
    base = import_module(package).Callback
    return [type("TorshCallback", (_Hooks, base), {"__doc__": _Hooks.__doc__})()]


class _Hooks:
    """Reports each step to torshrun, with the time that is left, and saves a checkpoint on notice.

    A notice asks the job to make room (SIGTERM, or SIGUSR1 before the end of its time). The
    callback then saves a checkpoint of the current step, hpc_ckpt_N.ckpt in default_root_dir, on
    all ranks, and ends them with code 75.
    """

    def __init__(self) -> None:
        self._notices: Notices | None = None
        self._step = -1

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Handle notices in place of Lightning's handler, in which ranks wait for each other."""
        self._notices = Notices.begun()
        self._step = trainer.global_step

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        """Report the step."""
        from torsh_runtime import monitoring

        total = trainer.estimated_stepping_batches
        known = math.isfinite(total) and total > 0
        left = time_left()
        numbers: dict[str, Any] = {} if left is None else {"time_left": left}
        monitoring.step(trainer.global_step, total=int(total) if known else None, **numbers)

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        """Save a checkpoint and exit if a notice asks for it, checked once per optimizer step."""
        if self._notices is None or trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        if self._notices.stop_after(self._step):
            trainer.save_checkpoint(trainer.strategy.broadcast(_path(trainer)))
            raise SystemExit(MADE_ROOM)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Stop handling notices."""
        if self._notices is not None:
            self._notices.end()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Stop handling notices."""
        self.on_train_end(trainer, module)


def _path(trainer: Any) -> str:
    """Return the next path that Lightning itself looks for with `ckpt_path="hpc"`."""
    folder = Path(trainer.default_root_dir)
    names = (path.stem.removeprefix("hpc_ckpt_") for path in folder.glob("hpc_ckpt_*.ckpt"))
    last = max((int(name) for name in names if name.isdecimal()), default=0)
    return str(folder / f"hpc_ckpt_{last + 1}.ckpt")
