"""A process of concurrent.futures is killed from outside, which its parent learns of.

nproc: 2
culprit: 1
kind: signal | exception
hint: child|process, SIGKILL|killed|terminated abruptly
"""

import os
import signal
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import torsh_runtime as tr


def augment(step: int) -> int:
    if step == 3 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return step


def main() -> None:
    tr.init_process_group(timeout=30)
    with ProcessPoolExecutor(1) as pool:
        for step in range(5):
            tr.all_reduce(np.array([pool.submit(augment, step).result()]))


if __name__ == "__main__":
    main()
