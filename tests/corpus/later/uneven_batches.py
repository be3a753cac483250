"""The last shard has fewer batches than the others, and nobody wrapped the loop in join().

nproc: 3
culprit: 2
kind: missing | mismatch | early_exit
hint: barrier|finished|exited|fewer, all_?reduce
needs: torch
seconds: 120
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset


def shard(dataset, rank, world):
    per = -(-len(dataset) // world)
    return Subset(dataset, range(rank * per, min(len(dataset), (rank + 1) * per)))


def train():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank, world = dist.get_rank(), dist.get_world_size()
    data = TensorDataset(torch.randn(20, 6), torch.randint(0, 2, (20,)))
    loader = DataLoader(shard(data, rank, world), batch_size=3)
    model = DistributedDataParallel(nn.Linear(6, 2))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        print(f"[{rank}] batch {i + 1}/{len(loader)}", flush=True)
    dist.barrier()
    if rank == 0:
        torch.save(model.module.state_dict(), "last.pt")


train()
