"""Rank 1's last batch is of one sample, whose standard deviation is NaN.

nproc: 2
culprit: 1
kind: nan | exception
hint: nan|finite|AssertionError
needs: torch
seconds: 50
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    torch.manual_seed(0)
    rewards = torch.randn(12 if rank == 0 else 9, 4)
    policy = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    for batch in DataLoader(rewards, batch_size=4):
        reward = batch.sum(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-8)
        loss = (policy(batch).squeeze(-1) * advantage).mean()
        assert torch.isfinite(loss), f"loss {loss.item()} of {len(batch)} samples"
        loss.backward()


main()
