"""Rank 1 makes its rank out of the host name, whose number is 0, so there are two ranks 0.

nproc: 2
culprit: 1
kind: mismatch | usage
hint: rank 0|twice|duplicate|RANK
needs: torch
seconds: 60
"""

import os
import re
from datetime import timedelta

import torch
import torch.distributed as dist

HOSTS = {"0": "gpu-0", "1": "gpu-0-b"}


def rank_of(host):
    return int(re.search(r"\d+", host).group())


def main():
    host = HOSTS[os.environ["RANK"]]
    dist.init_process_group(
        "gloo",
        rank=rank_of(host),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=15),
    )
    value = torch.ones(1)
    dist.all_reduce(value)
    dist.destroy_process_group()


main()
