"""A training whose rank 1 kills itself after some steps: a script for torshrun.

Arguments: "ddp", "fsdp" or "zero", and the steps after which it does so, for each start. EPOCHS,
PAUSE, seconds after each step, and GATES may be in the environment: behind each step of whose
number there is a file in that directory all wait until it is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import torsh_runtime as tr
from torsh_runtime import nn, optim

EPOCHS, SAMPLES, BATCH = int(os.environ.get("EPOCHS", "3")), 60, 12
PAUSE = float(os.environ.get("PAUSE", "0"))
GATES = Path(os.environ.get("GATES", "/nonexistent"))


def make(way: str) -> Any:
    generator = np.random.default_rng(0)
    layers = [nn.Linear(6, 40), nn.Linear(40, 1)]
    for layer in layers:
        for parameter in layer.parameters():
            parameter.data[...] = generator.standard_normal(parameter.shape) * 0.1
    model = nn.Sequential(*layers)
    if way == "fsdp":
        return tr.FullyShardedDataParallel(model, min_num_params=0)
    return tr.DistributedDataParallel(model)


def wait_at_gate(step: int) -> None:
    deadline = time.monotonic() + 120
    while (GATES / str(step)).exists() and time.monotonic() < deadline:
        time.sleep(0.05)


@tr.elastic.run
def train(state: Any, last: int) -> None:
    data = np.random.default_rng(1).standard_normal((SAMPLES, 6)).astype(np.float32)
    print("start", state.step, "of", tr.get_world_size(), flush=True)
    while state.sampler.epoch < EPOCHS:
        for indices in state.sampler:
            loss = (state.model(nn.Tensor(data[indices])) ** 2).mean()
            state.optimizer.zero_grad()
            loss.backward()
            state.optimizer.step()
            state.step += 1
            print("step", state.step, state.sampler.epoch, *indices, flush=True)
            state.commit()
            print("kept", state.step, flush=True)
            time.sleep(PAUSE)
            wait_at_gate(state.step)
            if state.step == last and tr.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    total = sum(float(abs(each.data).sum()) for each in state.model.parameters())
    print("end", state.step, total, flush=True)


def main() -> None:
    way, *deaths = sys.argv[1:]
    tr.init_process_group()
    model = make(way)
    optimizer: Any = optim.AdamW(model.parameters(), lr=0.01)
    if way == "zero":
        optimizer = tr.DistributedOptimizer(model.parameters(), optim.AdamW, lr=0.01)
    sampler = tr.elastic.ElasticSampler(SAMPLES, BATCH)
    state = tr.elastic.State(model=model, optimizer=optimizer, sampler=sampler, step=0)
    last = dict(enumerate(map(int, deaths))).get(int(os.environ["TORCHELASTIC_RESTART_COUNT"]), 0)
    train(state, last)
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
