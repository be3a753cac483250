"""Rank 2 stops itself to wait for a debugger, with a setting that somebody left on.

nproc: 3
culprit: 2
kind: stopped
hint: SIGSTOP|stopped|state T
seconds: 40
"""

import os
import signal

import numpy as np

import torsh_runtime as tr

DEBUG_RANK = int(os.environ.get("DEBUG_RANK", "2"))


def maybe_wait_for_debugger():
    if int(os.environ["RANK"]) == DEBUG_RANK:
        print(f"attach to {os.getpid()}, then continue it", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)


def main():
    tr.init_process_group()
    for step in range(10):
        if step == 3:
            maybe_wait_for_debugger()
        values = np.arange(4.0)
        tr.all_reduce(values)
    tr.destroy_process_group()


main()
