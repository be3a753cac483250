"""Rank 1 has nothing to do and ends, while the others count who is ready.

nproc: 3
culprit: 1
kind: early_exit | missing
hint: rank 1
needs: torch
seconds: 40
"""

import sys
import time

import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        print("nothing to evaluate", flush=True)
        sys.exit(0)
    store.add("ready", 1)
    while store.add("ready", 0) < dist.get_world_size():
        time.sleep(0.1)
    dist.barrier()


main()
