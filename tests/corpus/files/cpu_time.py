"""A login node allows a second of processor time (ulimit -t), and rank 1 has used it.

culprit: 1
kind: limit | signal
hint: SIGXCPU, ulimit -t|processor time|cpu time
"""

import os
import resource

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    if os.environ["RANK"] == "1":
        used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
        resource.setrlimit(resource.RLIMIT_CPU, (used + 1, used + 10))
    for _ in range(2000):
        gradient = np.random.default_rng(0).standard_normal(1 << 16)
        tr.all_reduce(gradient[:8])


main()
