"""With two ranks nobody can tell whose size is the wrong one.

culprit: 0 | 1
kind: mismatch
hint: all_reduce, shape|elements|bytes|24
"""

import os

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=20)
    tr.all_reduce(np.ones(24 if os.environ["RANK"] == "1" else 32, np.float32))


main()
