"""Rank 1's sampling profiler puts its handler back, and leaves its timer on.

nproc: 2
culprit: 1
kind: signal
hint: SIGPROF|signal 27|Profiling timer
needs: torch
seconds: 60
"""

import collections
import signal
from datetime import timedelta

import torch
import torch.distributed as dist


class Profiler:
    def __enter__(self):
        self.samples = collections.Counter()
        self.before = signal.signal(signal.SIGPROF, self.sample)
        signal.setitimer(signal.ITIMER_PROF, 0.05, 0.05)
        return self

    def sample(self, number, frame):
        self.samples[frame.f_code.co_name] += 1

    def __exit__(self, *_):
        signal.signal(signal.SIGPROF, self.before)


def step(weights):
    grad = torch.tanh(weights @ weights) * 1e-3
    dist.all_reduce(grad)
    weights -= grad


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    weights = torch.randn(64, 64)
    if dist.get_rank() == 1:
        with Profiler():
            step(weights)
    else:
        step(weights)
    for _ in range(3000):
        step(weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
