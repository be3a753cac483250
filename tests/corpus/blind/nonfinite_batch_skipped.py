"""Rank 2 drops a batch whose loss is infinite, and with it the gradient exchange of that step.

At the end it is one exchange ahead: it sums up metrics while the others still average gradients.

nproc: 3
culprit: 2
kind: missing | mismatch  # it is in another collective than the others
hint: all_?reduce|backward|gradient
needs: torch
seconds: 45
"""

import resource
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, CORRUPT_STEP = 6, 3


def batch(rank, step):
    inputs = torch.randn(32, 64)
    if rank == 2 and step == CORRUPT_STEP:
        inputs[5] = float("inf")  # a broken record in this rank's shard
    return inputs


def train_step(model, optimizer, inputs):
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    if not torch.isfinite(loss):
        return 0
    loss.backward()
    optimizer.step()
    return len(inputs)


def main():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    dist.init_process_group("gloo", timeout=timedelta(seconds=12))
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(64, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = sum(train_step(model, optimizer, batch(dist.get_rank(), n)) for n in range(STEPS))
    metrics = torch.tensor([float(samples), 1.0])
    dist.all_reduce(metrics)
    print(f"epoch done, {metrics[0]:.0f} samples", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
