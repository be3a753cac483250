"""The script takes the number of ranks from a configuration for a bigger machine.

nproc: 2
culprit: none
kind: usage
hint: world.?size|4 (ranks|processes|workers|clients)
needs: torch
seconds: 45
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

CONFIG = {"backend": "gloo", "world_size": 4, "lr": 0.1}


def main():
    dist.init_process_group(
        CONFIG["backend"],
        rank=int(os.environ["RANK"]),
        world_size=CONFIG["world_size"],
        timeout=timedelta(seconds=10),
    )
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()


main()
