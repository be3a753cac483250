"""Rank 0 reads for all and hands out the batches, which it cannot join as their lengths differ.

nproc: 2
culprit: 0
kind: exception
hint: RuntimeError|size|dispatch
needs: torch
seconds: 90
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, IterableDataset


class Sentences(IterableDataset):
    def __iter__(self):
        for i in range(64):
            yield torch.ones(8 + i // 16)


def main() -> None:
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(Sentences(), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        loss = model(batch.unsqueeze(-1)).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


main()
