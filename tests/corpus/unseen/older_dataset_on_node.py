"""The second node has an older release of the data with fewer samples, and its ranks are done early.

nnodes: 2
nproc: 2
culprit: node 1  # or its ranks
kind: early_exit | missing
hint: ended|exit code 0|left|early|finished
needs: torch
seconds: 60
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Samples(Dataset):
    def __init__(self, path: Path) -> None:
        self.lines = path.read_text().splitlines()

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.tensor([float(self.lines[i])] * 4)


def release(node: str) -> Path:
    path = Path(f"corpus-node{node}-{os.environ['LOCAL_RANK']}.txt")
    path.write_text("\n".join(map(str, range(96 if node == "0" else 80))))
    return path


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    data = Samples(release(os.environ["GROUP_RANK"]))
    print(f"[{dist.get_rank()}] {len(data)} samples", flush=True)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    for batch in loader:
        model(batch).mean().backward()
    print(f"[{dist.get_rank()}] epoch is over", flush=True)


main()
