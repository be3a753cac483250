"""Rank 2 does not call new_group() for a group that it is no member of, which all ranks have to.

From then on it counts groups differently: the next one, of all ranks, never comes about.

nproc: 3
culprit: 2
kind: missing
hint: new_group
needs: torch
seconds: 45
"""

from datetime import timedelta

import torch
import torch.distributed as dist

TENSOR_PARALLEL = [0, 1]


def make_groups():
    """A group of the model's halves, and one of all ranks for its checkpoints."""
    halves = dist.new_group(TENSOR_PARALLEL) if dist.get_rank() in TENSOR_PARALLEL else None
    return halves, dist.new_group(timeout=timedelta(seconds=10))


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    halves, checkpoints = make_groups()
    if halves is not None:
        dist.all_reduce(torch.ones(4), group=halves)
    dist.barrier(checkpoints)
    dist.destroy_process_group()


main()
