"""Rank 1 fails, and its clean-up takes long: its exception is not shown before the others give up.

culprit: 1
kind: exception
hint: ValueError|exception
seconds: 30
"""

import os
import time

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=3)
rank = int(os.environ["RANK"])
try:
    for step in range(9):
        if rank == 1 and step == 4:
            raise ValueError("bad label -3")
        tr.all_reduce(np.ones(8))
finally:
    if rank == 1:
        time.sleep(60)
