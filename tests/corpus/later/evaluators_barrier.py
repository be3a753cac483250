"""After evaluation rank 1 waits for the evaluators' group, and the others for all ranks.

nproc: 3
culprit: 1
kind: mismatch | missing | deadlock
hint: barrier, group|rank 1
needs: torch
seconds: 120
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def evaluate(rank, group):
    score = torch.tensor([0.7 + rank / 10])
    dist.all_reduce(score, group=group)
    if rank == 0:
        torch.save(score / 2, "score.pt")
        dist.barrier()
    else:
        dist.barrier(group=group)  # before somebody reads it
        assert os.path.exists("score.pt")


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    evaluators = dist.new_group([0, 1])
    for step in range(5):
        grad = torch.full((16,), float(step))
        dist.all_reduce(grad)
    if rank < 2:
        evaluate(rank, evaluators)
    else:
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
