"""Rank 0 removes the scratch directory that the other rank still reads.

nproc: 2
culprit: 0 | 1
kind: file
hint: FileNotFoundError|No such file, scratch
seconds: 40
"""

import pathlib
import shutil
import time

import numpy as np

import torsh_runtime as tr

SCRATCH = pathlib.Path("scratch")


def stage(parts):
    SCRATCH.mkdir()
    for part in range(parts):
        np.save(SCRATCH / f"{part}.npy", np.full(4, part))


def consume(parts, pause):
    for part in range(parts):
        yield np.load(SCRATCH / f"{part}.npy")
        time.sleep(pause)


def main():
    tr.init_process_group()
    rank = tr.get_rank()
    if rank == 0:
        stage(10)
    tr.barrier()
    total = sum(part.sum() for part in consume(10, 0.3 * rank))
    if rank == 0:
        shutil.rmtree(SCRATCH)
    summed = np.array([total])
    tr.all_reduce(summed)
    tr.destroy_process_group()


main()
