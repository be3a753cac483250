"""A job of rank 1 takes a slot and asks for another one, of which there is only one.

nproc: 3
culprit: 1
kind: deadlock | stuck
hint: rank 1, lock
seconds: 40
"""

import threading

import numpy as np

import torsh_runtime as tr

slots = threading.Semaphore(1)


def decode(name: str) -> np.ndarray:
    with slots:
        if name.endswith(".ref"):
            return decode(name.removesuffix(".ref"))
        return np.full(2, float(len(name)))


tr.init_process_group(timeout=20)
for step in range(6):
    image = decode("a.png.ref" if (tr.get_rank(), step) == (1, 3) else "a.png")
    tr.all_reduce(image)
