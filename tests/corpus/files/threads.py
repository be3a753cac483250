"""The user may not have so many threads (ulimit -u), and a rank's pool is refused its own.

culprit: 0
kind: limit
hint: threads|processes, ulimit -u|nproc|pids|limit
needs: root
"""

import os
import resource
import threading
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    if os.environ["RANK"] == "0":
        os.setresuid(54321, 54321, 54321)  # root has no limit
        resource.setrlimit(resource.RLIMIT_NPROC, (20, 20))
    for _ in range(40):
        threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
        tr.all_reduce(np.ones(4))


main()
