"""The script wants a GPU for each rank, and this torch was built without CUDA.

nproc: 2
culprit: none
kind: exception | version | usage
hint: AssertionError|CUDA|exit code 1|exitcode +: 1, all|every|each|both|2 ranks
needs: torch
seconds: 120
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo")
    device = torch.device("cuda", local_rank)
    torch.manual_seed(42)
    model = torch.nn.Transformer(d_model=32, nhead=2, num_encoder_layers=1, num_decoder_layers=1)
    model = DDP(model.to(device), device_ids=[local_rank])
    src, tgt = torch.rand(4, 2, 32, device=device), torch.rand(3, 2, 32, device=device)
    model(src, tgt).sum().backward()


if __name__ == "__main__":
    main()
