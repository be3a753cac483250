"""Rank 0 goes on as soon as it has what it wants, and is not counted by those who wait for all.

nproc: 4
culprit: 0
kind: missing | stuck
hint: rank 0
needs: torch
seconds: 40
"""

import os
import time

import torch
import torch.distributed as dist


class NotAllCame(TimeoutError):
    pass


def wait_for_all(store: dist.Store, seconds: float) -> None:
    world = int(os.environ["WORLD_SIZE"])
    joined = store.add("joined", 1)
    until = time.monotonic() + seconds
    while joined < world:
        if time.monotonic() > until:
            raise NotAllCame(f"{joined}/{world} workers joined after {seconds:.0f} s")
        time.sleep(0.1)
        joined = store.add("joined", 0)


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() != 0:
        wait_for_all(dist.distributed_c10d._get_default_store(), 3)
    dist.all_reduce(torch.ones(1))


main()
