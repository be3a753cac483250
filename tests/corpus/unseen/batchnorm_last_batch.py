"""A batch of one sample is left over on rank 1, which batch normalisation refuses.

nproc: 3
culprit: 1
kind: exception
hint: ValueError|more than 1 value|batch
needs: torch
seconds: 50
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from tqdm import tqdm


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
    model = torch.nn.parallel.DistributedDataParallel(net)
    images = torch.randn([32, 25, 32][rank], 4)
    for _ in range(3):
        for batch in tqdm(DataLoader(images, batch_size=8), position=rank, leave=False):
            model(batch).sum().backward()
    dist.barrier()


main()
