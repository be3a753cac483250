"""Rank 1 stops early, by a validation loss of its own shard, and goes to the final barrier.

nproc: 2
culprit: 1
kind: mismatch | missing | deadlock
hint: all_?reduce|barrier
needs: torch
seconds: 60
"""

from datetime import timedelta

import torch
import torch.distributed as dist

VALIDATION = {0: [9, 8, 7, 6, 5, 4, 3, 2], 1: [9, 8, 8.1, 8.2, 8.4, 8.3, 8.2, 8.1]}


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def __call__(self, loss):
        if loss < self.best:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def train_epoch(weights):
    for _ in range(3):
        grad = torch.randn_like(weights)
        dist.all_reduce(grad)
        weights -= 0.01 * grad


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    stop = EarlyStopping(patience=3)
    weights = torch.zeros(1000)
    for loss in VALIDATION[dist.get_rank()]:
        train_epoch(weights)
        if stop(loss):
            print(f"rank {dist.get_rank()}: no improvement, stopping early")
            break
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save(weights, "final.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
