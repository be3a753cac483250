"""Both ranks receive first, and send after.

culprit: 0 1
kind: deadlock
hint: recv|receive, rank 0|ranks 0, 1
"""

import os

import numpy as np

import torsh_runtime as tr


def main() -> None:
    peer = 1 - int(os.environ["RANK"])
    tr.init_process_group(timeout=4)
    halo = np.empty(100)
    tr.recv(halo, peer)
    tr.send(np.ones(100), peer)


main()
