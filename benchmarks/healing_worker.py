"""Runs one rank of healing.py: `healing_worker.py PLAN`."""

from __future__ import annotations

import json
import mmap
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import torsh_runtime as tr
from torsh_runtime import nn, optim
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.elastic.healing import heal, hold

PATIENCE = 60.0
"""Seconds that the ranks may take to meet."""


class Training:
    """Holds a model of `num_bytes` bytes together with its momentum; the last rank heals."""

    def __init__(self, num_bytes: int) -> None:
        self._group = tr.group.WORLD
        self._last = tr.get_world_size() - 1
        self._is_lost = tr.get_rank() == self._last
        width = int((num_bytes / 8) ** 0.5)
        self._model = nn.Linear(width, width, bias=False)
        self.num_bytes = width * width * 8
        self._whole = self._optimizer()
        if not self._is_lost:
            weight = self._model.weight
            weight.data[...] = np.arange(width, dtype=np.float32)
            weight.grad = nn.Tensor(np.ones_like(weight.data))
            self._whole.step()
            self._whole.zero_grad()

    def heal(self) -> float:
        """Return the seconds in which the last rank, whose momentum has no memory yet, heals."""
        optimizer = self._optimizer() if self._is_lost else self._whole
        parts = {"model": self._model, "optimizer": optimizer}
        own = None if self._is_lost else hold(parts, Ranks(self._group))
        whole = [*range(self._last)]
        return self._timed(lambda: heal(self._group, parts, own, whole, [self._last]))

    def copy(self) -> float:
        """Return the seconds in which the last rank copies as many bytes to memory that it had
        not."""
        if not self._is_lost:
            return self._timed(lambda: None)
        source = np.ones(self.num_bytes, np.uint8)

        def copied() -> None:
            fresh = mmap.mmap(-1, self.num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            fresh.madvise(mmap.MADV_HUGEPAGE)  # as numpy's own allocator does
            np.copyto(np.ndarray(self.num_bytes, np.uint8, fresh), source)

        return self._timed(copied)

    def meet(self, number: int) -> float:
        """Return the seconds in which the ranks connect anew."""
        group: Any = self._group
        place = group.rank, group.world_size
        return self._timed(lambda: group.configure(group.store(), "", *place, number, PATIENCE))

    def _optimizer(self) -> optim.SGD:
        return optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)

    def _timed(self, call: Callable[[], None]) -> float:
        """Return the seconds of the rank that the call took longest."""
        tr.barrier()
        begun = time.perf_counter_ns()
        call()
        own = np.array([time.perf_counter_ns() - begun], np.int64)
        tr.barrier()
        return float(self._group.all_gather_numbers(own).max()) / 1e9


def main() -> None:
    plan = json.loads(sys.argv[1])
    tr.init_process_group()
    training = Training(plan["num_bytes"])
    turns = range(plan["turns"])
    found: dict[str, Any] = {"heal": [], "copy": [], "meet": []}
    for _ in turns:
        found["heal"].append(training.heal())
        if plan["copies"]:
            found["copy"].append(training.copy())
    if plan["copies"]:
        found["meet"] = [training.meet(number) for number in turns]
    if tr.get_rank() == 0:
        Path(plan["to"]).write_text(json.dumps({**found, "num_bytes": training.num_bytes}))
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
