"""A training of `benchmarks/corruption.py`, of which every other block of steps is checked."""

import json
import os
import sys
import time

import numpy as np

import torsh_runtime as tr
from torsh_runtime import nn, optim


def main() -> None:
    width, samples, every, pairs = map(int, sys.argv[1:])
    tr.init_process_group()
    nn.manual_seed(0)
    model = tr.DistributedDataParallel(nn.Linear(width, width))
    optimizer = optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    data = np.random.default_rng(tr.get_rank()).standard_normal((samples, width))
    inputs = nn.Tensor(data.astype(np.float32))
    job = tr.elastic.join(model=model, optimizer=optimizer, check_every=every)
    checks = job._checks  # to switch them on and off within a run, as runs differ by more
    blocks: list[float] = []
    begun = 0.0
    for step in job.steps((2 * pairs + 1) * every + 1):
        turn, place = divmod(step.number, every)
        if place == 0:
            now = time.process_time()
            if turn > 1:  # the first block warms up
                blocks.append(now - begun)
            begun = now
            checks._every = every if is_checked(turn) else 0
        with step:
            (model(inputs) ** 2).mean().backward()
            step.commit()
    found = [(blocks[i], blocks[i + 1]) for i in range(0, len(blocks), 2)]
    in_order = [
        pair if is_checked(1 + 2 * number) else pair[::-1] for number, pair in enumerate(found)
    ]
    own = {"pairs": in_order, "seconds_of_a_check": check_seconds(checks)}
    with open(f"{os.environ['FOUND']}/{tr.get_rank()}", "w") as file:  # noqa: PTH123
        json.dump(own, file)
    tr.destroy_process_group()


def is_checked(turn: int) -> bool:
    """Return whether this block is: of two blocks one is, the first and the second by turns."""
    return turn % 4 in (1, 0)


def check_seconds(checks) -> float:  # type: ignore[no-untyped-def]
    """Return the seconds of processor time of one check by itself."""
    checks._every = 1
    begun = time.process_time()
    checks.compute()
    checks.checksum()
    return time.process_time() - begun


main()
