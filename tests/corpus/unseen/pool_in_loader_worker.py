"""The data set makes a pool of processes, which a DataLoader's worker may not do.

nproc: 2
culprit: none
kind: exception
hint: AssertionError|daemonic, worker
needs: torch
seconds: 40
"""

import multiprocessing
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


def resample(rate: int) -> float:
    return rate / 16_000


class Speech(Dataset):
    pool = None

    def __len__(self) -> int:
        return 16

    def __getitem__(self, i: int) -> torch.Tensor:
        if self.pool is None:
            self.pool = multiprocessing.Pool(2)
        return torch.tensor(self.pool.map(resample, [8_000, 16_000, 44_100]))


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    for batch in DataLoader(Speech(), batch_size=4, num_workers=1):
        model(batch).sum().backward()


if __name__ == "__main__":
    main()
