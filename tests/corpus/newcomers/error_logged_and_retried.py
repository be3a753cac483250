"""Rank 1 catches every error of a step and tries the step again, which fails for ever.

nproc: 2
culprit: 1
kind: exception | missing | stuck
hint: all_?reduce
needs: torch
seconds: 60
"""

import logging
import time
from datetime import timedelta

import torch
import torch.distributed as dist

log = logging.getLogger("trainer")
SIZES = {0: [16, 16, 16, 16], 1: [16, 16, 12, 16]}


def step(model, size):
    features = torch.randn(4, size)
    loss = model(features).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def fit(model, sizes):
    done = 0
    while done < len(sizes):
        try:
            step(model, sizes[done])
        except Exception as error:
            if "shapes" not in str(error):
                raise
            log.warning("step %d failed, once more: %s", done, error)
            time.sleep(0.3)
        else:
            done += 1


def main():
    logging.basicConfig()
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    fit(torch.nn.Linear(16, 1), SIZES[dist.get_rank()])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
