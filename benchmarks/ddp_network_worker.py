"""Runs one rank of ddp_network.py: `ddp_network_worker.py PLAN`, started by spawn.py."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

import torsh_runtime as tr

_STEPS = 5
_TURNS = 12
_WARM_UP = 2
_PATIENCE = 10.0
"""Seconds that tc may take."""
_BURST = 128_000
"""Smallest burst in bytes, as TCP passes on 64 KiB in one piece."""
_TICK = 1 / 250
"""Seconds between two ticks of the slowest clocks."""


def limit(interface: str, bits: float) -> None:
    """Limit what this end of the cable sends to `bits` bits per second."""
    burst = max(int(bits / 8 * _TICK), _BURST)
    words = f"qdisc replace dev {interface} root tbf rate {int(bits)}bit burst {burst}"
    command = ["tc", *words.split(), "latency", "20ms"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    if done.returncode:
        raise RuntimeError(f"tc: {done.stderr.strip()}")


def layers(width: int, depth: int) -> nn.Module:
    """Return Linear layers with ReLU between them, which are the same on all ranks."""
    torch.manual_seed(0)
    made = [nn.Linear(width, width) for _ in range(depth)]
    return nn.Sequential(*(module for layer in made for module in (layer, nn.ReLU())))


def timed(call: Callable[[], Any]) -> float:
    """Return the seconds of a call that ranks start together."""
    tr.barrier()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class Training:
    """Runs one rank's steps on its own data, without an optimizer."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._data = torch.randn(plan["batch"], plan["width"])
        self._plain = self._model()
        self.nbytes = 4 * sum(parameter.numel() for parameter in self._plain.parameters())

    def overlap(self) -> dict[str, float]:
        """Return medians of interleaved measurements, since the speed of machines changes.

        Times are those of the slower rank.
        """
        gradients = tr.empty_shared(self.nbytes // 4)
        gradients[:] = 1

        def communication() -> float:
            return timed(lambda: tr.all_reduce(gradients))

        backward = self._agreed(lambda: self._step(self._plain))
        bits = 8 * self.nbytes / backward
        limit(self._plan["interface"], bits)
        limit(self._plan["interface"], bits * self._agreed(communication) / backward)
        wrapped = tr.DistributedDataParallel(self._model())
        rows = []
        for _ in range(_WARM_UP + _TURNS):
            tr.barrier()
            began = time.perf_counter()
            passed = self._step(self._plain)
            compute = time.perf_counter() - began
            rows.append((passed, compute, communication(), timed(lambda: self._step(wrapped))))
        times = np.array(rows[_WARM_UP:])
        tr.all_reduce(times, tr.ReduceOp.MAX)
        found = dict(zip(("backward", "compute", "communication", "step"), times.T, strict=True))
        found["exposed"] = found["step"] - found["compute"]
        return {name: median(values.tolist()) for name, values in found.items()}

    def _agreed(self, measured: Callable[[], float]) -> float:
        """Return the median of the slower rank's measurements."""
        found = np.array([measured() for _ in range(_STEPS)])
        tr.all_reduce(found, tr.ReduceOp.MAX)
        return median(found.tolist())

    def compressed(self) -> dict[str, float]:
        """Return the median time of steps on a cable of `mbit` Mbit/s."""
        limit(self._plan["interface"], self._plan["mbit"] * 1e6)
        name = self._plan["what"]
        hook = None if name == "dense" else name
        model = tr.DistributedDataParallel(self._plain, gradient_compression=hook)
        times = [timed(lambda: self._step(model)) for _ in range(_WARM_UP + _STEPS)]
        return {"step": median(times[_WARM_UP:])}

    def _model(self) -> nn.Module:
        return layers(self._plan["width"], self._plan["depth"])

    def _step(self, model: Any) -> float:
        """Do a step, and return the seconds of its backward pass."""
        model.zero_grad()
        loss = model(self._data).square().mean()
        began = time.perf_counter()
        loss.backward()
        return time.perf_counter() - began


def main() -> None:
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    tr.init_process_group()
    training = Training(plan)
    found = training.overlap() if plan["what"] == "overlap" else training.compressed()
    if tr.get_rank() == 0:
        Path(plan["to"]).write_text(json.dumps(found))
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
