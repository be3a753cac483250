"""Rank 1 fails over a missing class, and its exit handler enters a gather that the other does not.

nproc: 2
culprit: 1
kind: exception
hint: rank 1
needs: torch
seconds: 60
"""

import atexit
from datetime import timedelta

import torch
import torch.distributed as dist

LABELS = {0: ["cat", "dog", "cat", "dog"], 1: ["dog", "cat", "bird", "cat"]}
CLASSES = {"cat": 0, "dog": 1}
seen = []


def write_statistics():
    everybodys = [None] * dist.get_world_size()
    dist.all_gather_object(everybodys, seen)
    if dist.get_rank() == 0:
        print("samples seen:", sum(map(len, everybodys)))
    dist.destroy_process_group()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    atexit.register(write_statistics)
    weights = torch.zeros(2000)
    for label in LABELS[dist.get_rank()]:
        weights[CLASSES[label]] += 1
        seen.append(label)
        dist.all_reduce(weights)


if __name__ == "__main__":
    main()
