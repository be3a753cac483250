"""Stage 2 of a pipeline expects its activations from stage 0 rather than from stage 1.

nproc: 3
culprit: 0 | 1 | 2  # to send to 2 from 0 would end it, as to receive from 1 would
kind: deadlock | missing | mismatch
hint: recv|receive, 0
needs: torch
seconds: 60
"""

from datetime import timedelta

import torch
import torch.distributed as dist

PREVIOUS = {1: 0, 2: 0}  # copied from the two-stage version
FOLLOWING = {0: 1, 1: 2}


class Stage:
    def __init__(self, rank):
        self.rank, self.layer = rank, torch.nn.Linear(8, 8)

    @torch.no_grad()
    def forward(self):
        hidden = torch.randn(4, 8)
        if self.rank in PREVIOUS:
            dist.recv(hidden, src=PREVIOUS[self.rank])
        hidden = self.layer(hidden)
        if self.rank in FOLLOWING:
            dist.send(hidden, dst=FOLLOWING[self.rank])
        return hidden


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    stage = Stage(dist.get_rank())
    for _ in range(3):
        stage.forward()
    dist.barrier()
    dist.destroy_process_group()


main()
