"""Rank 0 takes one more average for its report after the process group is gone.

nproc: 2
culprit: 0
kind: exception | usage
hint: ValueError|RuntimeError|process group|initiali[sz]ed
needs: torch
seconds: 40
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def average(value: float) -> float:
    total = torch.tensor(value)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    is_main = dist.get_rank() == 0
    loss = 1.0
    for _ in range(5):
        loss = average(loss) * 0.9
    dist.destroy_process_group()
    if is_main:
        print(f"final loss {average(loss):.3f}", flush=True)


main()
