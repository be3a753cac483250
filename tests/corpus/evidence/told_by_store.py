"""Rank 2 tells its error to the others before it raises it, and they end with it as well.

nproc: 3
culprit: 2
kind: exception | file
hint: rank 2
needs: torch
seconds: 40
"""

import time

import torch.distributed as dist


def work(step: int) -> None:
    if dist.get_rank() == 2 and step == 3:
        raise ValueError("record 17 has no end")
    time.sleep(0.05)


def main() -> None:
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    for step in range(200):
        try:
            work(step)
        except ValueError as error:
            store.set("abort", f"rank {dist.get_rank()} raised {error!r}")
            time.sleep(0.6)  # the others see it in their next step
            raise
        if store.check(["abort"]):
            raise RuntimeError(f"stopping in step {step}: {store.get('abort').decode()}")


main()
