"""The loss is reduced to rank 0 alone, so only rank 0 meets the early-stopping rule.

The others hold their own part of the sum, see another number, and go on training.

nproc: 3
culprit: 0
kind: mismatch | missing
hint: barrier, all_reduce
needs: torch
seconds: 120
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Linear(8, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    best, patience = None, 0
    for epoch in range(20):
        x = torch.ones(4, 8)
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        val = torch.tensor([1.0 + 0.1 * epoch]) if epoch > 3 else torch.tensor([1.0 - 0.1 * epoch])
        dist.reduce(val, dst=0)
        score = val.item() if rank == 0 else -epoch  # what is left in val is of no use here
        if best is None or score < best:
            best, patience = score, 0
        else:
            patience += 1
        if patience > 2:
            print(f"rank {rank}: early stop at epoch {epoch}")
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
