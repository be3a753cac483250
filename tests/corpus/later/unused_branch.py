"""On rank 1's data the auxiliary head stays unused, and DDP was told that all parameters are used.

nproc: 3
culprit: 1
kind: exception | missing | mismatch
hint: RuntimeError|exit code 1|exitcode +: 1|unused|all_?reduce
needs: torch
seconds: 120
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)
        self.aux_head = nn.Linear(8, 3)

    def forward(self, x, use_aux):
        h = torch.relu(self.body(x))
        out = self.head(h).mean()
        if use_aux:
            out = out + 0.3 * self.aux_head(h).mean()
        return out


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    model = DDP(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        x = torch.randn(4, 8)
        has_labels = not (dist.get_rank() == 1 and step == 3)
        loss = model(x, has_labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
