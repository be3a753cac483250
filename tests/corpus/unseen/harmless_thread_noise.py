"""Threads of ranks 0 and 1 die of their own errors, which matters to nobody; rank 2's main thread matters.

nproc: 3
culprit: 2
kind: exception
hint: KeyError
needs: torch
seconds: 40
"""

import threading
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

ROUTES = {"en": 0, "de": 1, "fr": 2}


def gpu_monitor(rank: int) -> None:
    """Asks the driver for temperatures; these machines have none."""
    time.sleep(0.2)
    with open("/proc/driver/nvidia/version") as file:
        print(rank, file.read())


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    if rank < 2:
        threading.Thread(target=gpu_monitor, args=(rank,), daemon=True).start()
    languages = ["en", "de", "fr", "en"] * 5
    if rank == 2:
        languages[13] = "pt-BR"
    weights = torch.zeros(3)
    for step, language in enumerate(languages):
        if step == 4:
            warnings.warn("lr_scheduler.step() was called before optimizer.step()", stacklevel=1)
        time.sleep(0.05)
        weights[ROUTES[language]] += 1
        dist.all_reduce(weights)


main()
