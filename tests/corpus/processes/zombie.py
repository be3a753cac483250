"""The process that feeds rank 0 has died, and nobody looks: it is a zombie.

nproc: 2
culprit: 0
kind: stuck | exit_code
hint: rank 0, child|process|zombie
"""

import os
import subprocess
import time
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group()
    tr.barrier()
    if os.environ["RANK"] == "0":
        feeder = subprocess.Popen(["sh", "-c", "sleep 0.2; exit 3"])
        while not Path("batch-0").exists():
            time.sleep(0.1)
        feeder.wait()
    tr.all_reduce(np.ones(10))


main()
