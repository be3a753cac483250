"""The index of rank 1's token file was made for a longer version of it.

nproc: 2
culprit: 1
kind: exception | file
hint: IndexError|index|document
needs: torch
seconds: 40
"""

import json
import os
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Documents(Dataset):
    """Documents of tokens in one flat file, of which an index knows the beginnings."""

    def __init__(self, prefix: str, length: int) -> None:
        self.tokens = np.memmap(f"{prefix}.bin", np.uint16, "r")
        with open(f"{prefix}.idx.json") as file:
            self.starts = json.load(file)
        self.length = length

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> torch.Tensor:
        start = self.starts[i]
        first = self.tokens[start]
        if first != 1:
            raise ValueError(f"document {i} does not begin with <s>")
        text = self.tokens[start : start + self.length]
        return torch.from_numpy(text.astype(np.float32))


def prepare(prefix: str, documents: int, indexed: int) -> None:
    tokens = np.tile(np.array([1, 7, 8, 9], np.uint16), documents)
    tokens.tofile(f"{prefix}.bin")
    with open(f"{prefix}.idx.json", "w") as file:
        json.dump([4 * i for i in range(indexed)], file)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    prefix = f"c4_{rank}"
    prepare(prefix, 40 if rank == 0 else 36, indexed=40)
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(2):
        for batch in DataLoader(Documents(prefix, 4), batch_size=4):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        print(f"epoch {epoch} is over", flush=True)
    os.remove(f"{prefix}.bin")


main()
