"""An extension of rank 0 waits for a device, and never lets go of the GIL.

culprit: 0
kind: deadlock | stuck
hint: rank 0, GIL|no Python|compiled|native|extension|all_reduce
"""

import ctypes
import os

import numpy as np

import torsh_runtime as tr


def synchronize() -> None:
    ctypes.PyDLL(None).sleep(100)  # PyDLL keeps the GIL


def main() -> None:
    tr.init_process_group()
    for step in range(5):
        if step == 3 and os.environ["RANK"] == "0":
            synchronize()
        tr.all_reduce(np.ones(10))


main()
