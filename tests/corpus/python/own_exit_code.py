"""A rank reports its failure in its own words, and ends with a code of its own.

nproc: 3
culprit: 2
kind: exit_code
hint: exit ?code *:? 17
"""

import os
import sys

import numpy as np

import torsh_runtime as tr


def main() -> int:
    tr.init_process_group(timeout=30)
    for step in range(5):
        if step == 2 and os.environ["RANK"] == "2":
            print("licence server has no seats left", file=sys.stderr)
            return 17
        tr.all_reduce(np.ones(4))
    return 0


sys.exit(main())
