"""A callback for the Trainer of Lightning, which finds it by itself: an entry point in its group
"lightning.pytorch.callbacks_factory". Only workers of torshrun get it."""

from __future__ import annotations

import math
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from torsh_runtime.elastic.time_limit import time_left
from torsh_runtime.integrations.notices import MADE_ROOM, Notices


def callbacks() -> list[Any]:
    """Those for lightning.pytorch."""
    return _callbacks("lightning.pytorch")


def callbacks_of_pytorch_lightning() -> list[Any]:
    """The same for the package of the older name."""
    return _callbacks("pytorch_lightning")


def _callbacks(package: str) -> list[Any]:
    if not os.environ.get("TORSH_STORE_ENDPOINT"):
        return []
    base = import_module(package).Callback
    return [type("TorshCallback", (_Hooks, base), {"__doc__": _Hooks.__doc__})()]


class _Hooks:
    """Tells torshrun each step, with the time that is left; and at a notice that the job is to make
    room (SIGTERM, or SIGUSR1 before the end of its time) saves a checkpoint of the step in hand,
    hpc_ckpt_N.ckpt in default_root_dir, on all ranks, and ends them with code 75.
    """

    def __init__(self) -> None:
        self._notices: Notices | None = None
        self._step = -1

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Begin to listen, in place of Lightning's handler, which makes ranks meet within it."""
        self._notices = Notices.begun()
        self._step = trainer.global_step

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        """Tell the step."""
        from torsh_runtime import monitoring

        total = trainer.estimated_stepping_batches
        known = math.isfinite(total) and total > 0
        left = time_left()
        numbers: dict[str, Any] = {} if left is None else {"time_left": left}
        monitoring.step(trainer.global_step, total=int(total) if known else None, **numbers)

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        """Save and end, if that is due; asked once for each step of the optimizer."""
        if self._notices is None or trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        if self._notices.stop_after(self._step):
            trainer.save_checkpoint(trainer.strategy.broadcast(_path(trainer)))
            raise SystemExit(MADE_ROOM)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Listen no more."""
        if self._notices is not None:
            self._notices.end()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """The same."""
        self.on_train_end(trainer, module)


def _path(trainer: Any) -> str:
    """The name that Lightning itself looks for, `ckpt_path="hpc"`, with the next number."""
    folder = Path(trainer.default_root_dir)
    names = (path.stem.removeprefix("hpc_ckpt_") for path in folder.glob("hpc_ckpt_*.ckpt"))
    last = max((int(name) for name in names if name.isdecimal()), default=0)
    return str(folder / f"hpc_ckpt_{last + 1}.ckpt")
