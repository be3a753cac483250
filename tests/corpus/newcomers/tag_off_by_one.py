"""The stages of a pipeline number their micro batches from 0 and from 1, and use that as tags.

nproc: 2
culprit: 0 | 1
kind: mismatch | missing | deadlock
hint: recv|receiv
needs: torch
seconds: 60
"""

from datetime import timedelta

import torch
import torch.distributed as dist

MICRO_BATCHES = 4


def first_stage():
    layer = torch.nn.Linear(8, 8)
    for number in range(MICRO_BATCHES):
        with torch.no_grad():
            dist.send(layer(torch.randn(2, 8)), dst=1, tag=number)
    grad = torch.empty(2, 8)
    for number in range(MICRO_BATCHES):
        dist.recv(grad, src=1, tag=number)


def last_stage():
    activations = torch.empty(2, 8)
    for number in range(1, MICRO_BATCHES + 1):
        dist.recv(activations, src=0, tag=number)
    for number in range(MICRO_BATCHES):
        dist.send(activations, dst=0, tag=number)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    (first_stage if dist.get_rank() == 0 else last_stage)()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
