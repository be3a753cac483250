"""A C extension of rank 2 follows a null pointer.

nproc: 3
culprit: 2
kind: crash | signal
hint: SIGSEGV|signal 11|Segmentation
seconds: 30
"""

import ctypes

import numpy as np

import torsh_runtime as tr

libc = ctypes.CDLL(None)
libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def gather_rows(target, source):
    libc.memcpy(target.ctypes.data, source, target.nbytes)


def main():
    tr.init_process_group()
    rank = tr.get_rank()
    table = np.arange(64.0)
    for step in range(30):
        rows = np.empty(64)
        freed = rank == 2 and step == 12
        gather_rows(rows, None if freed else table.ctypes.data)
        tr.all_reduce(rows)
    tr.destroy_process_group()


main()
