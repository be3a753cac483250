"""A file grows beyond ulimit -f in a program that dies of it, as programs in C do.

culprit: 1
kind: limit | signal
hint: SIGXFSZ, ulimit -f|larger than|file size
"""

import os
import resource
import signal
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    if os.environ["RANK"] == "1":
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with Path(f"trace-{os.environ['RANK']}.bin").open("wb", buffering=0) as file:
        for _ in range(10):
            file.write(bytes(1 << 18))
            tr.all_reduce(np.ones(4))


main()
