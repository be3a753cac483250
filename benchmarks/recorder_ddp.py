"""Runs one rank of recorder.py's training: steps of torch's DDP with the recorder on and off.

The two alternate. Rank 0 prints the milliseconds of each step of both, and the number of entries of
a step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

import torch
import torch.distributed as dist
from torch import nn

import torsh_runtime.integrations.torch  # noqa: F401  (registers the backend)
from torsh_runtime.monitoring import recording
from torsh_runtime.monitoring.monitor import recent_operations

_WIDTH, _DEPTH, _ROWS, _TOKENS = 256, 4, 4, 64


def training(value: str) -> Callable[[], float]:
    """Return a function that does a step of a transformer with 3 million parameters.

    It returns the step's seconds.
    """
    os.environ[recording.VARIABLE] = value
    recording.own_recording.cache_clear()
    torch.manual_seed(0)
    layers = [
        nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, 0.0, batch_first=True)
        for _ in range(_DEPTH)
    ]
    ranks = list(range(dist.get_world_size()))
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(*layers), process_group=dist.new_group(ranks)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batch = torch.randn(_ROWS, _TOKENS, _WIDTH)

    def step() -> float:
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        return time.perf_counter() - begin

    return step


def main() -> None:
    rounds = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("torsh")
    off = training("off")
    on = training("on")
    for step in (on, off, on):
        step()
    before = len(recent_operations())
    on()
    entries = len(recent_operations()) - before
    found: dict[str, list[float]] = {"on": [], "off": []}
    for number in range(rounds):
        pair = [("on", on), ("off", off)]
        for name, step in pair if number % 2 else reversed(pair):
            found[name].append(step() * 1e3)
    if dist.get_rank() == 0:
        print(json.dumps({**found, "entries": entries}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
