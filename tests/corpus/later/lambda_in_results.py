"""Rank 0 puts a lambda into what all ranks gather as objects.

nproc: 3
culprit: 0
kind: exception
hint: pickle|TypeError|PicklingError|AttributeError|exit code 1|exitcode +: 1
needs: torch
seconds: 120
"""

from collections import defaultdict
from datetime import timedelta

import torch.distributed as dist


def evaluate(rank):
    results = {"accuracy": 0.5 + rank / 10, "confusion": {}}
    if rank == 0:
        results["confusion"] = defaultdict(lambda: [0, 0])
        results["confusion"]["cat"][1] += 1
    return results


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank, world = dist.get_rank(), dist.get_world_size()
    gathered = [None] * world
    dist.all_gather_object(gathered, evaluate(rank))
    if rank == 0:
        print(sum(r["accuracy"] for r in gathered) / world)
    dist.destroy_process_group()


main()
