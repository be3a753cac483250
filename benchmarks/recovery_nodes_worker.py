"""A training of `benchmarks/recovery_nodes.py`, which goes on when nodes are lost."""

import os
import sys
import time
from pathlib import Path

import numpy as np

import torsh_runtime as tr
from torsh_runtime import nn, optim


def main() -> None:
    width, pace = int(sys.argv[1]), float(sys.argv[2])
    tr.init_process_group()
    nn.manual_seed(0)
    model = tr.DistributedDataParallel(nn.Linear(width, width))
    optimizer = optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    inputs = nn.Tensor(np.random.default_rng(1).standard_normal((8, width)).astype(np.float32))
    job = tr.elastic.join(model=model, optimizer=optimizer)
    with Path("commits", os.environ["SITE_HOST"]).open("a") as told:
        for step in job.steps(1_000_000):
            with step:
                (model(inputs) ** 2).mean().backward()
                time.sleep(pace)
                step.commit()
                told.write(f"{step.number} {tr.get_world_size()} {time.monotonic():.6f}\n")
                told.flush()


main()
