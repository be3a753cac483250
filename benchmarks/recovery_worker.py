"""A training of `benchmarks/recovery.py` that goes on when workers are killed."""

import os
import sys
import time

import numpy as np

import torsh_runtime as tr
from torsh_runtime import nn, optim


def main() -> None:
    begun, (width, recovers) = time.monotonic(), map(int, sys.argv[1:])
    tr.init_process_group()
    nn.manual_seed(0)
    model = tr.DistributedDataParallel(nn.Linear(width, width))
    optimizer = optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    data = np.random.default_rng(1).standard_normal((64, width)).astype(np.float32)
    inputs = nn.Tensor(data[tr.get_rank() :: tr.get_world_size()])
    if not recovers:
        unprotected(model, optimizer, inputs)
        return
    lead = time.monotonic() - begun
    job = tr.elastic.join(model=model, optimizer=optimizer)
    print(f"start {tr.get_rank()} {os.getpid()} {lead:.6f}", flush=True)
    for step in job.steps(1_000_000):
        with step:
            (model(inputs) ** 2).mean().backward()
            step.commit()
            print(f"commit {step.number} {time.monotonic():.6f}", flush=True)


def unprotected(model, optimizer, inputs) -> None:  # type: ignore[no-untyped-def]
    print(f"start {tr.get_rank()} {os.getpid()} 0", flush=True)
    for number in range(1_000_000):
        (model(inputs) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"commit {number} {time.monotonic():.6f}", flush=True)


main()
