"""Every loader starts further processes, until the user may not have more.

culprit: 1
kind: limit
hint: processes|fork, ulimit -u|nproc|pids|limit
needs: root
"""

import os
import resource
import subprocess

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    if os.environ["RANK"] == "1":
        os.setresuid(54322, 54322, 54322)
        resource.setrlimit(resource.RLIMIT_NPROC, (12, 12))
    loaders = []
    for _ in range(20):
        loaders.append(subprocess.Popen(["sleep", "30"], cwd="/"))
        tr.all_reduce(np.ones(4))


main()
