"""A native library of rank 2 finds its own invariant broken, and aborts.

nproc: 3
culprit: 2
kind: crash | signal
hint: SIGABRT|abort
seconds: 60
"""

import ctypes
import os

import numpy as np

import torsh_runtime as tr

libc = ctypes.CDLL(None)


def native_assert(ok: bool, expression: str) -> None:
    if not ok:
        os.write(2, f"bpe.cc:118: Assertion `{expression}' failed.\n".encode())
        libc.abort()


def merge_pairs(pairs: np.ndarray) -> int:
    native_assert(len(pairs) > 0, "pairs.size() > 0")
    return int(pairs.max())


tr.init_process_group(timeout=30)
rank = tr.get_rank()
for step in range(5):
    pairs = np.arange(0 if (rank, step) == (2, 3) else 10)
    top = np.array([merge_pairs(pairs)])
    tr.all_reduce(top, tr.ReduceOp.MAX)
