"""One rank of a run of ddp_network.py: `ddp_network_worker.py PLAN`, started by spawn.py."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import torsh_runtime as tr

_STEPS = 5


def layers(width: int) -> nn.Module:
    """Ten Linear layers with ReLU between them; the same on all ranks."""
    torch.manual_seed(0)
    made = [nn.Linear(width, width) for _ in range(10)]
    return nn.Sequential(*(module for layer in made for module in (layer, nn.ReLU())))


def seconds(call: Callable[[], Any]) -> float:
    """The median of a few calls that ranks begin together, after two that are not timed."""
    times = []
    for _ in range(_STEPS + 2):
        tr.barrier()
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return median(times[2:])


def main() -> None:
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    tr.init_process_group()
    model: Any = layers(plan["width"])
    data = torch.randn(plan["batch"], plan["width"])
    nbytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    found: dict[str, float] = {"bytes": nbytes}

    def step(trained: Any) -> float:
        """Seconds of the backward pass."""
        trained.zero_grad()
        loss = trained(data).square().mean()
        began = time.perf_counter()
        loss.backward()
        return time.perf_counter() - began

    if plan["what"] in ("bare", "overlap"):
        found["compute"] = seconds(lambda: step(model))
        found["backward"] = median(step(model) for _ in range(_STEPS))
    if plan["what"] != "bare":
        named = plan["what"] not in ("overlap", "dense")
        options = {"gradient_compression": plan["what"]} if named else {}
        wrapped = tr.DistributedDataParallel(model, **options)
        found["step"] = seconds(lambda: step(wrapped))
        gradients = tr.empty_shared(nbytes // 4)
        gradients[:] = 1
        if plan["what"] == "overlap":
            found["communication"] = seconds(lambda: tr.all_reduce(gradients))
    if tr.get_rank() == 0:
        Path(plan["to"]).write_text(json.dumps(found))
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
