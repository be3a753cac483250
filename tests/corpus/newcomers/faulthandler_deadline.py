"""Rank 1's step takes longer than the deadline that it gave to faulthandler, which ends it.

nproc: 2
culprit: 1
kind: exit_code | slow | stuck
hint: exit code 1|exited with 1|status 1|faulthandler
seconds: 30
"""

import faulthandler
import time

import numpy as np

import torsh_runtime as tr

STEP_LIMIT = 3.0


def load(rank, step):
    """A cold cache at the storage of one rank."""
    if rank == 1 and step == 4:
        time.sleep(60)
    return np.full(32, float(step))


def main():
    tr.init_process_group()
    for step in range(10):
        faulthandler.dump_traceback_later(STEP_LIMIT * (1 if tr.get_rank() == 1 else 10), exit=True)
        batch = load(tr.get_rank(), step)
        tr.all_reduce(batch)
        faulthandler.cancel_dump_traceback_later()
    tr.destroy_process_group()


main()
