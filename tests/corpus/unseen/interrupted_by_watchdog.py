"""A thread of rank 1's own finds that a step takes too long, and interrupts the main thread.

The step is slow since the rank counts words in pure Python for one huge document.

nproc: 3
culprit: 1
kind: signal | exception | slow
hint: KeyboardInterrupt|interrupt|SIGINT
needs: torch
seconds: 40
"""

import _thread
import logging
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

logging.basicConfig(format="%(asctime)s %(levelname)s [%(threadName)s] %(message)s")


class Watchdog(threading.Thread):
    def __init__(self, limit: float) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.limit = limit
        self.last = time.monotonic()

    def run(self) -> None:
        while time.monotonic() - self.last < self.limit:
            time.sleep(0.1)
        logging.critical("no step for %g s, giving up", self.limit)
        _thread.interrupt_main()


def histogram(document: list[int]) -> torch.Tensor:
    counts = [0] * 16
    for token in document:
        counts[token % 16] += 1
    return torch.tensor(counts, dtype=torch.float32)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    dist.barrier()
    watchdog = Watchdog(limit=4 if dist.get_rank() == 1 else 600)  # the others' config is newer
    watchdog.start()
    for step in range(10):
        huge = dist.get_rank() == 1 and step == 6
        counts = histogram(range(10**9 if huge else 1000))
        dist.all_reduce(counts)
        watchdog.last = time.monotonic()


main()
