"""Only rank 0 broadcasts: the call stands inside `if rank == 0`.

culprit: 1
kind: missing
hint: broadcast, rank 1
"""

import os
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    rank = int(os.environ["RANK"])
    tr.init_process_group(timeout=4)
    config = np.zeros(1 << 18)  # too large to be on its way
    tr.barrier()
    if rank == 0:
        tr.broadcast(config, 0)
    else:
        deadline = time.monotonic() + 30
        while config[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.2)


main()
