"""Rank 1 fails first, but its clean-up takes so long that rank 0, which lost it, ends before it.

culprit: 1
kind: exception
hint: rank 1
"""

import atexit
import os
import time

import numpy as np

import torsh_runtime as tr


def upload_logs() -> None:
    if os.environ["RANK"] == "1":
        time.sleep(3)


def main() -> None:
    atexit.register(upload_logs)
    tr.init_process_group(timeout=2)
    for step in range(100):
        if step == 5 and os.environ["RANK"] == "1":
            raise RuntimeError("the tokenizer gave no tokens")
        try:
            tr.all_reduce(np.ones(4))
        except tr.CommError as error:
            raise RuntimeError(f"training failed at step {step}") from error


main()
