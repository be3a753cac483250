"""Rank 1 leaves by itself; the others handle that they lost it, save, and exit with their own code.

nproc: 3
culprit: 1
kind: exit_code
hint: exit code 3
"""

import os
import sys
import traceback

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=30)
try:
    for step in range(99):
        if tr.get_rank() == 1 and step == 5:
            print("no more samples", file=sys.stderr, flush=True)
            os._exit(3)
        tr.all_reduce(np.ones(8))
except tr.CommError:
    traceback.print_exc()
    for part in range(30):
        print(f"saving part {part}", file=sys.stderr)
    sys.exit(7)
