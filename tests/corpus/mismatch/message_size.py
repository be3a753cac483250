"""The stages of a pipeline disagree about the size of a batch.

culprit: 0 | 1
kind: mismatch
hint: recv|message, bytes|size|elements|shape|too
"""

import os

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=20)
    if os.environ["RANK"] == "0":
        tr.send(np.ones(64, np.float32), 1)
    else:
        tr.recv(np.empty(32, np.float32), 0)
    tr.barrier()


main()
