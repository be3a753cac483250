"""Rank 0's thread for checkpoints dies over a limit on file sizes, and rank 0 waits for it.

The other ranks wait for rank 0 in the next all_reduce, and give up first.

nproc: 3
culprit: 0
kind: limit
hint: file size|RLIMIT_FSIZE|EFBIG|too large|thread
torchrun: no
seconds: 30
"""

import resource
import signal
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

import torsh_runtime as tr

LIMIT = 64 * 1024


class AsyncCheckpoints:
    """Writes beside the training; the next save waits until the one before is on the disk."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.saved = threading.Event()
        self.saved.set()

    def save(self, step, weights):
        self.saved.wait()
        self.saved.clear()
        threading.Thread(target=self._write, args=(step, weights.copy()), daemon=True).start()

    def _write(self, step, weights):
        with (self.directory / f"step{step}.npy").open("wb") as file:
            file.write(weights.tobytes())
        self.saved.set()


def train(checkpoints):
    weights = np.zeros(32 * 1024, np.float32)
    for step in range(10):
        tr.all_reduce(weights, tr.ReduceOp.AVG)
        if tr.get_rank() == 0 and step % 3 == 2:
            checkpoints.save(step, weights)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    tr.init_process_group(timeout=6)
    if tr.get_rank() == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))  # the site's ulimit -f
    with tempfile.TemporaryDirectory() as directory:
        train(AsyncCheckpoints(directory))
    tr.destroy_process_group()


main()
