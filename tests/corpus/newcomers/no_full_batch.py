"""With four ranks no rank has a full batch, and drop_last leaves nothing to train on.

nproc: 4
culprit: none
kind: exception | usage
hint: all |every|each|both|ranks
needs: torch
seconds: 60
"""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(100, 4), torch.randint(2, (100,)))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data), drop_last=True)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
