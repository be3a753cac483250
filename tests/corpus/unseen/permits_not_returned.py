"""Each failed request of rank 1 keeps a permit of the rate limiter; after four there is none left.

The failures are handled, and logged with their tracebacks. Rank 0 has one as well, which does no harm.

nproc: 3
culprit: 1
kind: deadlock | stuck
hint: rank 1, acquire|fetch|semaphore|wait
needs: torch
seconds: 60
"""

import logging
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s")
log = logging.getLogger("client")
permits = threading.BoundedSemaphore(4)


def request(key: int) -> float:
    rank = dist.get_rank()
    if (rank == 1 and key % 5 == 2) or (rank == 0 and key == 6):
        raise ConnectionError(f"503 for key {key}")
    return float(key)


def fetch(key: int) -> float:
    permits.acquire()
    try:
        value = request(key)
    except ConnectionError:
        log.exception("key %d: using the default", key)
        return 0.0
    permits.release()
    return value


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=12))
    total = torch.zeros(1)
    for key in range(40):
        total += fetch(key)
        dist.all_reduce(total)
    log.info("done: %g", total.item())


main()
