"""Rank 1 does not take a large message from rank 0.

culprit: 1
kind: missing
hint: send|message, rank 1
"""

import os
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=4)
    tr.barrier()
    if os.environ["RANK"] == "0":
        tr.send(np.ones(1 << 22, np.float32), 1)
    else:
        time.sleep(60)


main()
