"""The thread that prepares batches dies of an exception, and its rank waits for it for ever.

culprit: 1
kind: exception | stuck
hint: rank 1, thread
"""

import os
import queue
import threading

import numpy as np

import torsh_runtime as tr

BATCHES: queue.Queue[np.ndarray] = queue.Queue(maxsize=2)


def prepare() -> None:
    for number in range(100):
        if number == 5 and os.environ["RANK"] == "1":
            raise ValueError("sample 5 has no pixels")
        BATCHES.put(np.ones(16, np.float32))


def main() -> None:
    tr.init_process_group(timeout=60)
    threading.Thread(target=prepare, daemon=True).start()
    for _ in range(100):
        tr.all_reduce(BATCHES.get())


main()
