"""All ranks of the second node read slowly, and do not come to the all_reduce.

nproc: 2
nnodes: 2
culprit: node 1
kind: missing | slow
hint: all_reduce, node 1|ranks 2
seconds: 30
"""

import os
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=5)
    for step in range(10):
        if step == 5 and os.environ["GROUP_RANK"] == "1":
            time.sleep(60)
        tr.all_reduce(np.ones(10))


main()
