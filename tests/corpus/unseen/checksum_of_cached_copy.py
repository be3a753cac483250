"""The copy of the data set in rank 2's cache is damaged, and stays so however often it is looked at.

nproc: 3
culprit: 2
kind: file | exception
hint: ChecksumMismatch|checksum|sha256
needs: torch
seconds: 40
"""

import hashlib
import logging
import time
from datetime import timedelta

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO, format="%(asctime)s | %(levelname)-8s | %(message)s")
logger = logging.getLogger("hub.cache")


class ChecksumMismatch(Exception):
    pass


def verify(path: str, wanted: str) -> None:
    with open(path, "rb") as file:
        found = hashlib.sha256(file.read()).hexdigest()
    if found != wanted:
        raise ChecksumMismatch(f"{path}: sha256 {found[:12]}…, expected {wanted[:12]}…")


def fetch(path: str, wanted: str) -> str:
    for attempt in range(1, 4):
        try:
            verify(path, wanted)
            return path
        except ChecksumMismatch as error:
            logger.warning("attempt %d/3 failed: %s", attempt, error)
            last = error
            time.sleep(0.2 * attempt)
    raise last


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    data = bytes(range(256)) * 64
    path = f".cache-{rank}-imdb.arrow"
    with open(path, "wb") as file:
        file.write(data if rank != 2 else data[:-512] + bytes(512))
    fetch(path, hashlib.sha256(data).hexdigest())
    logger.info("rank %d: data set is complete", rank)
    dist.all_reduce(torch.ones(1))


main()
