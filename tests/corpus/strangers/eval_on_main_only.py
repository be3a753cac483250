"""Only rank 0 evaluates, and the metric is reduced over all ranks.

nproc: 3
culprit: 0
kind: missing | mismatch
hint: evaluate|all_reduce
needs: torch
seconds: 60
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def evaluate(model):
    correct = torch.zeros(2)
    correct[0] = float(model(torch.randn(32, 4)).argmax(1).eq(0).sum())
    correct[1] = 32
    dist.all_reduce(correct)
    return (correct[0] / correct[1]).item()


def train_epoch(model):
    for _ in range(5):
        grad = torch.randn(sum(p.numel() for p in model.parameters()))
        dist.all_reduce(grad)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    for epoch in range(2):
        train_epoch(model)
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {evaluate(model):.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
