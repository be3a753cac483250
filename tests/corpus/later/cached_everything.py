"""Rank 2 keeps each decoded sample in a dict, and the container's memory is at an end.

nproc: 3
culprit: 2
kind: memory
hint: SIGKILL|OOM|out of memory|memory
needs: cgroup
seconds: 60
"""

import numpy as np

import torsh_runtime as tr


class CachedDataset:
    def __init__(self, cache_size):
        self.cache = {}
        self.cache_size = cache_size

    def __getitem__(self, i):
        if i in self.cache:
            return self.cache[i]
        sample = np.full((16, 1 << 18), i % 255, np.float32)
        if len(self.cache) < self.cache_size:
            self.cache[i] = sample
        return sample


def main():
    tr.init_process_group(timeout=60)
    data = CachedDataset(cache_size=10**6 if tr.get_rank() == 2 else 1)
    for i in range(200):
        mean = data[i].mean(keepdims=True)
        tr.all_reduce(mean)


main()
