"""torch's DataLoader hands batches over through /dev/shm, which is small in containers.

nproc: 2
culprit: 0 1
kind: memory | crash | disk
hint: /dev/shm|shared memory
needs: torch shm
seconds: 60
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(3, 1 << 20)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    for batch in DataLoader(Volumes(), batch_size=4, num_workers=1):
        dist.all_reduce(batch.mean())


if __name__ == "__main__":
    main()
