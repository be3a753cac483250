"""The script asks for NCCL, and this machine's torch has none, nor is there a GPU.

nproc: 2
culprit: 0 1
kind: usage
hint: nccl, gpu|cuda|gloo|build|cpu
needs: torch
seconds: 30
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")
    torch.cuda.set_device(local_rank)
    model = DistributedDataParallel(torch.nn.Linear(8, 8).cuda(), device_ids=[local_rank])
    model(torch.randn(4, 8).cuda()).sum().backward()
    dist.destroy_process_group()


main()
