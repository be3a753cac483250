"""Stage 1 of a pipeline waits for activations that stage 0 does not send.

culprit: 0
kind: missing
hint: recv|receive|message, rank 0
"""

import os
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=4)
    tr.barrier()
    if os.environ["RANK"] == "1":
        tr.recv(np.empty(16, np.float32), 0)
    else:
        time.sleep(60)


main()
