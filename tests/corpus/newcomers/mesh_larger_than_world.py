"""The mesh of the configuration, 2 x 2, does not fit the three workers.

nproc: 3
culprit: none
kind: usage | exception
hint: all |every|each|both|ranks
needs: torch
seconds: 60
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

PARALLEL = {"dp": 2, "tp": 2}


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", tuple(PARALLEL.values()), mesh_dim_names=tuple(PARALLEL))
    torch.manual_seed(mesh["dp"].get_local_rank())
    part = torch.randn(64, 64 // PARALLEL["tp"])
    dist.all_reduce(part, group=mesh["dp"].get_group())
    print(os.environ["RANK"], part.sum().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
