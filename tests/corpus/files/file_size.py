"""A file of features grows beyond ulimit -f.

culprit: 1
kind: limit
hint: file, ulimit -f|too large|larger than|size
"""

import os
import resource
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    if os.environ["RANK"] == "1":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with Path(f"features-{os.environ['RANK']}.bin").open("wb", buffering=0) as file:
        for _ in range(10):
            file.write(bytes(1 << 18))
            tr.all_reduce(np.ones(4))


main()
