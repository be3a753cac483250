"""Rank 0 removes old logs, which has nothing to do with the file that rank 1 was never given.

nproc: 2
culprit: 1
kind: file
hint: rank 1
seconds: 30
"""

from pathlib import Path

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=10)
if tr.get_rank() == 0:
    Path("logs").mkdir()
    Path("logs/old.txt").touch()
    Path("logs/old.txt").unlink()
    print("removed logs/old.txt, 1 file", flush=True)
    np.save("part-0.npy", np.ones(2))
part = np.load(f"part-{tr.get_rank()}.npy")
tr.all_reduce(part)
