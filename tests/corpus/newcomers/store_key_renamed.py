"""Rank 0 puts the name of the run into the store under one key, and rank 1 asks for another.

nproc: 2
culprit: 0 | 1
kind: store | missing | exception | mismatch
hint: store|key
needs: torch
seconds: 60
"""

import time
import uuid
from datetime import timedelta

import torch
import torch.distributed as dist


def share_run_name(store, rank):
    if rank == 0:
        name = uuid.uuid4().hex[:8]
        store.set("run_id", name)
        return name
    store.set_timeout(timedelta(seconds=6))
    return store.get("run-name").decode()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    store = dist.PrefixStore("tracking", dist.distributed_c10d._get_default_store())
    name = share_run_name(store, rank)
    for step in range(50):
        time.sleep(0.01)
        dist.all_reduce(torch.ones(4))
    print(f"{name}: rank {rank} done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
