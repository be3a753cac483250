"""A native routine of rank 1 divides a whole number by the zero batches of its shard.

nproc: 2
culprit: 1
kind: crash | signal
hint: SIGFPE|signal 8|floating.point|arithmetic
seconds: 30
"""

import ctypes

import numpy as np

import torsh_runtime as tr

native = ctypes.CDLL(None)
BATCHES = {0: 7, 1: 0}


def stride(tokens, batches):
    """libc's div(), which gives the quotient in the lower half."""
    return native.div(tokens, batches)


def main():
    tr.init_process_group()
    rank = tr.get_rank()
    total = np.array([BATCHES[rank]])
    tr.all_reduce(total)
    steps = np.array([stride(1000, BATCHES[rank])])
    tr.all_reduce(steps, tr.ReduceOp.MIN)
    print(total, steps)
    tr.destroy_process_group()


main()
