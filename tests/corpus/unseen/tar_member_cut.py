"""A shard of rank 2's is a tar that ends in the middle of a member.

The copy to the shared disk was broken off. Only the DataLoader's worker of rank 2 ever opens it; the
other ranks log an unreadable sample that they pass over, as they should.

nproc: 3
culprit: 2
kind: file | exception
hint: ReadError|tar|shard-00002, worker
needs: torch
seconds: 40
"""

import io
import logging
import os
import tarfile
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
log = logging.getLogger("wds")


def write_shard(path: str, samples: int) -> None:
    with tarfile.open(path, "w") as tar:
        for i in range(samples):
            payload = io.BytesIO()
            np.save(payload, np.full(64, i, np.float32))
            member = tarfile.TarInfo(f"{i:05d}.npy")
            member.size = payload.tell()
            payload.seek(0)
            tar.addfile(member, payload)


class Shard(IterableDataset):
    def __init__(self, path: str) -> None:
        self.path = path

    def __iter__(self):
        with tarfile.open(self.path, "r|") as tar:
            for member in tar:
                sample = np.load(io.BytesIO(tar.extractfile(member).read()))
                try:
                    yield self.checked(sample)
                except ValueError:
                    log.warning("%s: %s left out", self.path, member.name, exc_info=True)

    def checked(self, sample: np.ndarray) -> torch.Tensor:
        if sample[0] == 2:
            raise ValueError("clip is shorter than 1 s")
        return torch.from_numpy(sample)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    path = f"shard-{rank:05d}.tar"
    write_shard(path, 24)
    if rank == 2:
        os.truncate(path, 12_000)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1))
    for batch in DataLoader(Shard(path), batch_size=2, num_workers=1):
        model(batch).mean().backward()
    dist.barrier()


if __name__ == "__main__":
    main()
