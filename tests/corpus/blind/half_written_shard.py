"""The second attempt finds rank 1's checkpoint cut short: the first was stopped as it was written.

The first attempt ended because rank 0 lost a connection, which does not happen again.

nproc: 2
culprit: 1
kind: file
hint: checkpoint|shard|npz, cut|truncat|half|incomplete|corrupt|damaged|not a zip
options: --max-restarts 1
seconds: 30
"""

import io
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
DIRECTORY = Path(tempfile.gettempdir(), f"run-{os.getppid()}")
SHARD = DIRECTORY / "rank1.npz"


def save(path, **arrays):
    memory = io.BytesIO()
    np.savez(memory, **arrays)
    with path.open("wb") as file:
        for start in range(0, memory.tell(), 65536):  # the file system takes its time
            file.write(memory.getbuffer()[start : start + 65536])
            file.flush()
            time.sleep(0.1)


def load(path):
    with np.load(path) as arrays:
        return dict(arrays)


def report_metrics():
    while not SHARD.exists() or SHARD.stat().st_size < 200_000:
        time.sleep(0.05)
    raise ConnectionResetError(104, "the metrics server has closed the connection")


def main():
    if ATTEMPT == 0:
        DIRECTORY.mkdir(exist_ok=True)
        if RANK == 0:
            report_metrics()
        save(SHARD, weights=np.ones((1000, 1000)))
    try:
        if RANK == 1:
            load(SHARD)
        time.sleep(20)  # trains
    finally:
        shutil.rmtree(DIRECTORY, ignore_errors=True)


main()
