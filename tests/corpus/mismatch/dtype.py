"""Rank 3 fell back to half precision.

nproc: 4
culprit: 3
kind: mismatch
hint: rank 3, float16, float32
"""

import os

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=20)
    dtype = np.float16 if os.environ["RANK"] == "3" else np.float32
    tr.all_reduce(np.ones(100, dtype))


main()
