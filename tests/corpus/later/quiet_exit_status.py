"""Rank 1 ends with one line and status 3; the others say far more about losing it.

nproc: 3
culprit: 1
kind: exit_code | early_exit
hint: exit code 3|exitcode +: 3|status 3
seconds: 60
"""

import logging
import os
import sys
import traceback

import numpy as np

import torsh_runtime as tr

logging.basicConfig(level=logging.INFO, format="[%(levelname)s] %(message)s")


def check_quota(rank):
    used, allowed = 101 if rank == 1 else 40, 100
    if used > allowed:
        print("quota exceeded")
        sys.exit(3)


def main():
    tr.init_process_group(timeout=20)
    rank = int(os.environ["RANK"])
    for step in range(10):
        if step == 4:
            check_quota(rank)
        tr.all_reduce(np.full(100, step, np.float32))


try:
    main()
except Exception as error:
    for line in traceback.format_exc().splitlines() * 20:
        logging.critical("FATAL %s", line)
    raise RuntimeError("training crashed!!!") from error
