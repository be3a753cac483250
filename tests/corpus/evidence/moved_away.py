"""Rank 0 moves a finished run to the archive, from which rank 2 has still to read.

nproc: 3
culprit: 0 | 2
kind: file
hint: rank 0, rank 2
seconds: 30
"""

import logging
import shutil
import time
from pathlib import Path

import numpy as np

import torsh_runtime as tr

logging.basicConfig(level=logging.INFO)
tr.init_process_group(timeout=15)
rank, run = tr.get_rank(), Path("runs/warmup")
if rank == 0:
    run.mkdir(parents=True)
    Path("archive").mkdir()
    np.save(run / "weights.npy", np.ones(4))
tr.barrier()
if rank == 0:
    time.sleep(0.5)
    logging.info("moving %s to archive/", run)
    shutil.move(run, "archive")
if rank == 2:
    time.sleep(1.5)
weights = np.load(run / "weights.npy" if rank else "archive/warmup/weights.npy")
tr.all_reduce(weights)
