"""Rank 0 writes its shards to a scratch disk that is soon full.

nproc: 2
culprit: 0
kind: disk
hint: no space|ENOSPC|full
needs: disk
seconds: 60
"""

import os
from pathlib import Path

import numpy as np

import torsh_runtime as tr

SCRATCH = Path(os.environ["CORPUS_DISK"])


def dump(step: int, activations: np.ndarray) -> None:
    np.save(SCRATCH / f"act-{step:04d}.npy", activations)


tr.init_process_group(timeout=30)
for step in range(50):
    activations = np.random.default_rng(step).random((256, 1024), dtype=np.float32)
    tr.all_reduce(activations)
    if tr.get_rank() == 0:
        dump(step, activations)
