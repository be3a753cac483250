"""The seed of the DataLoader's workers is larger than numpy allows, from rank 2 on.

nproc: 3
culprit: 2
kind: exception
hint: ValueError|seed, worker
needs: torch
seconds: 40
"""

from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

SEED = 3_000_000_000


class Crops(Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((8,), float(np.random.randint(10)))


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()

    def seed_worker(worker: int) -> None:
        np.random.seed(SEED + 700_000_000 * rank + worker)

    torch.manual_seed(SEED)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    loader = DataLoader(Crops(), batch_size=8, num_workers=2, worker_init_fn=seed_worker)
    for batch in tqdm(loader, desc=f"[{rank}] train", disable=rank != 0):
        model(batch).mean().backward()
    dist.barrier()


main()
