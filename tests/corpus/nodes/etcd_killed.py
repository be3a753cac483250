"""etcd, at which the nodes meet, dies while they train, and they cannot agree on the end.

nproc: 1
nnodes: 2
culprit: none
kind: store
hint: etcd|store, answer|reach|lost
needs: etcd
torchrun: no
seconds: 60
"""

import os
import signal
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=20)
    for step in range(60):
        if step == 20 and os.environ["RANK"] == "0":
            os.kill(int(os.environ["CORPUS_ETCD_PID"]), signal.SIGKILL)
        tr.all_reduce(np.ones(10))
        time.sleep(0.02)


main()
