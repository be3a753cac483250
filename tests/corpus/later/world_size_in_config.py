"""The configuration still says four processes, and the job has three: all wait for a fourth.

nproc: 3
culprit: none
kind: usage | missing | stuck | store | network | exception
hint: world.?size|rank 3|3 of 4|4 ranks|of 4
needs: torch
seconds: 120
"""

import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist

CONFIG = json.loads('{"dist": {"backend": "gloo", "world_size": 4}, "lr": 0.001}')


def init_distributed(cfg):
    dist.init_process_group(
        cfg["backend"],
        rank=int(os.environ["RANK"]),
        world_size=cfg["world_size"],
        timeout=timedelta(seconds=15),
    )


if __name__ == "__main__":
    init_distributed(CONFIG["dist"])
    x = torch.ones(1)
    dist.all_reduce(x)
    print(x)
