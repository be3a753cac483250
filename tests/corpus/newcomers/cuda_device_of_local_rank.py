"""The script was written for GPUs, and this machine has none.

nproc: 2
culprit: none
kind: exception | usage | version
hint: GPU|CUDA
needs: torch
seconds: 60
"""

import os

import torch
import torch.distributed as dist


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    device = torch.device("cuda", local_rank)
    model = torch.nn.Linear(16, 16).to(device)
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])
    for _ in range(10):
        model(torch.randn(4, 16, device=device)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
