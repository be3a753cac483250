"""Rank 1's cache takes its lock again while it evicts, and the lock is not a reentrant one.

nproc: 2
culprit: 1
kind: deadlock | stuck
hint: lock|acquire, all_?reduce
needs: torch
seconds: 60
"""

import threading
from datetime import timedelta

import torch
import torch.distributed as dist


class Cache:
    def __init__(self, size):
        self.lock, self.size, self.items = threading.Lock(), size, {}

    def get(self, key, make):
        with self.lock:
            if key not in self.items:
                self.items[key] = make()
                if len(self.items) > self.size:
                    self.evict()
            return self.items[key]

    def evict(self):
        with self.lock:
            del self.items[next(iter(self.items))]


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank = dist.get_rank()
    cache = Cache(size=8)
    for step in range(40):
        sample = step if rank == 1 else step % 4
        x = cache.get(sample, lambda: torch.randn(16))
        mean = x.mean()
        dist.all_reduce(mean)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
