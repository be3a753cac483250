"""Two threads of rank 1 take two locks in different orders.

nproc: 3
culprit: 1
kind: deadlock
hint: rank 1, lock
"""

import os
import threading
import time

import numpy as np

import torsh_runtime as tr

CACHE, INDEX = threading.Lock(), threading.Lock()


def refresh() -> None:
    with INDEX:
        time.sleep(0.3)
        with CACHE:
            pass


def lookup() -> None:
    with CACHE:
        time.sleep(0.3)
        with INDEX:
            pass


def main() -> None:
    tr.init_process_group()
    for step in range(5):
        if step == 2 and os.environ["RANK"] == "1":
            threading.Thread(target=refresh).start()
            lookup()
        tr.all_reduce(np.ones(10))


main()
