"""No token was routed to rank 3's experts, and it leaves out the exchange.

nproc: 4
culprit: 3
kind: missing
hint: all_to_all, rank 3
"""

import os
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    rank = int(os.environ["RANK"])
    tr.init_process_group(timeout=4)
    for layer in range(4):
        tokens = 0 if rank == 3 and layer == 2 else 8
        if tokens:
            tr.all_to_all_single(np.empty(8, np.float32), np.ones(8, np.float32))
        else:
            time.sleep(60)


main()
