"""Rank 1's data module turns every error into one of its own, and leaves out the cause.

nproc: 2
culprit: 1
kind: exception
hint: rank 1
needs: torch
seconds: 60
"""

from datetime import timedelta

import torch
import torch.distributed as dist


class DataModuleError(Exception):
    """Something is wrong with a split."""


ROWS = {0: ["1,2,0", "2,3,1", "0,0,1"], 1: ["5,1,0", "4,,1", "2,2,0"]}


class DataModule:
    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        for row in ROWS[self.rank]:
            try:
                *features, label = (float(cell) for cell in row.split(","))
            except ValueError:
                raise DataModuleError("split 'train' is not usable") from None
            yield torch.tensor(features), int(label)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    for features, label in DataModule(dist.get_rank()):
        loss = torch.nn.functional.cross_entropy(model(features), torch.tensor(label))
        loss.backward()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
