"""All ranks log a handled error with its traceback, over and over; later rank 3 has a real one.

nproc: 4
culprit: 3
kind: exception
hint: exit code 1|exitcode +: 1|IndexError
seconds: 60
"""

import logging
import os
import time

import numpy as np

import torsh_runtime as tr

logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
log = logging.getLogger("fetch")


def fetch(shard: int, attempt: int) -> list[int]:
    if attempt < 3:
        raise ConnectionResetError(104, f"Connection reset by peer: shard-{shard:05d}.tar")
    return list(range(shard, shard + 4))


def fetch_with_retry(shard: int) -> list[int]:
    for attempt in range(5):
        try:
            return fetch(shard, attempt)
        except OSError:
            log.exception("attempt %d failed, retrying", attempt + 1)
            time.sleep(0.05)
    raise RuntimeError("gave up")


tr.init_process_group(timeout=30)
rank = int(os.environ["RANK"])
vocab = np.arange(6)
for _ in range(3):
    tokens = fetch_with_retry(rank)
    ids = np.array([vocab[t] for t in tokens], dtype=np.int64)
    tr.all_reduce(ids)
