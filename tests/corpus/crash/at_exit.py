"""The training is done, and a library's clean-up crashes while rank 1 ends.

culprit: 1
kind: crash
hint: SIGSEGV, compiled code|native|extension
"""

import atexit
import ctypes
import os

import numpy as np

import torsh_runtime as tr


def close_driver() -> None:
    if os.environ["RANK"] == "1":
        ctypes.string_at(8)


def main() -> None:
    atexit.register(close_driver)
    tr.init_process_group(timeout=30)
    for _ in range(5):
        tr.all_reduce(np.ones(8, np.float32))
    tr.destroy_process_group()
    print("done")


main()
