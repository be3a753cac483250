"""A process is spawned at the top level of the script, which each spawned process runs again.

nproc: 2
culprit: none
kind: exception | exit_code
hint: RuntimeError|exit code 1|exitcode +: 1, all|every|each|both|2 ranks|ranks 0-1|in the same way
seconds: 60
"""

import multiprocessing as mp
import os

import numpy as np


def preprocess(rank, out):
    np.save(out, np.full(10, rank, np.float32))


rank = int(os.environ["RANK"])
part = f"part-{rank}.npy"
ctx = mp.get_context("spawn")
worker = ctx.Process(target=preprocess, args=(rank, part))
worker.start()
worker.join()
if worker.exitcode:
    raise RuntimeError(f"preprocessing failed with exit code {worker.exitcode}")

import torsh_runtime as tr  # noqa: E402

tr.init_process_group(timeout=30)
tr.all_reduce(np.load(part))
