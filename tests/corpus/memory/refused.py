"""Rank 1 asks for more memory than its limit allows (ulimit -v, set by a job script).

culprit: 1
kind: memory
hint: memory, ulimit -v|limit|size
"""

import os
import resource

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    if os.environ["RANK"] == "1":
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    for step in range(4):
        cache = np.zeros((1 << 10) << (8 * step), np.float32)
        tr.all_reduce(cache[:4])
        if os.environ["RANK"] == "0" and step == 2:
            break
    tr.barrier()


main()
