"""Rank 1 waits for a batch, and the other for torch's default deadline of half an hour.

nproc: 2
culprit: 1
kind: missing
hint: all_?reduce, rank 1
needs: torch
seconds: 30
"""

import os
import queue

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    batches: queue.Queue[int] = queue.Queue()
    for number in range(3 if os.environ["RANK"] == "1" else 10):
        batches.put(number)
    for _ in range(10):
        batches.get()
        dist.all_reduce(torch.ones(100))


main()
