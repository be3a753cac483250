"""Only rank 0 consolidates the sharded optimizer's state, which takes all ranks.

nproc: 2
culprit: 0
kind: missing | mismatch | deadlock
hint: broadcast|barrier|gather|all_?reduce|rank 0
needs: torch
seconds: 60
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    torch.manual_seed(0)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Linear(32, 4)))
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3
    )
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        optimizer.consolidate_state_dict(to=0)
        torch.save({"optimizer": optimizer.state_dict()}, "last.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
