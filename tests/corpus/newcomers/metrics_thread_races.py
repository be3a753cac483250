"""A thread for metrics sums over all ranks beside the training, in one group: the calls cross.

nproc: 2
culprit: none
kind: mismatch | missing | deadlock
hint: all_?reduce|all_?gather
needs: torch
seconds: 60
"""

import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist


class Metrics(threading.Thread):
    def __init__(self, every):
        super().__init__(daemon=True)
        self.every = every

    def run(self):
        while True:
            time.sleep(self.every)
            mine = torch.rand(3)
            everybodys = [torch.empty(3) for _ in range(dist.get_world_size())]
            dist.all_gather(everybodys, mine)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    Metrics(every=0.11 + 0.013 * rank).start()
    weights = torch.zeros(2000)
    for _ in range(500):
        time.sleep(0.01 + 0.002 * rank)  # the loaders are not equally fast
        grad = torch.randn_like(weights)
        dist.all_reduce(grad)
        weights -= grad
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
