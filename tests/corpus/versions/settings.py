"""A variable that must be the same for all ranks is set on one of them, in its ~/.profile.

nproc: 3
culprit: 2
kind: mismatch | usage
hint: TORSH_|setting|differ, rank 2
"""

import os

import numpy as np

import torsh_runtime as tr


def main() -> None:
    if os.environ["RANK"] == "2":
        os.environ["TORSH_SHARE_ARRAYS"] = "0"
    tr.init_process_group(timeout=10)
    tr.all_reduce(np.ones(1 << 16))


main()
