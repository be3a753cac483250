"""torch looks for anomalies, and finds one in rank 0's backward pass.

nproc: 2
culprit: 0
kind: nan | exception
hint: nan|finite|anomaly
needs: torch
seconds: 40
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    torch.autograd.set_detect_anomaly(True)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    for step in range(3):
        out = model(torch.ones(2, 4))
        if step == 1 and os.environ["RANK"] == "0":
            out = (out - out).sqrt() * 0
        out.sum().backward()


main()
