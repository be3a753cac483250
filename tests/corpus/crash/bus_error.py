"""The file of tokens that rank 1 has mapped is cut short by its own preprocessing.

culprit: 1
kind: crash
hint: SIGBUS, mapped file|truncat|cut short|/dev/shm
"""

import os
import subprocess
import sys

import numpy as np

import torsh_runtime as tr


def main() -> None:
    rank = int(os.environ["RANK"])
    tr.init_process_group(timeout=30)
    path = f"tokens-{rank}.bin"
    np.arange(1 << 20, dtype=np.int32).tofile(path)
    tokens = np.memmap(path, np.int32, "r")
    for step in range(4):
        if step == 2 and rank == 1:
            subprocess.run([sys.executable, "-c", f"open({path!r}, 'w')"], check=True)
        total = np.array([int(tokens[step * 1000 : (step + 1) * 200_000].sum())])
        tr.all_reduce(total)


main()
