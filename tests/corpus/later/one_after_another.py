"""Rank 0 fails before it has written the manifest, and is slow to end; the others give up on it.

nproc: 3
culprit: 0
kind: exception
hint: exit code 1|exitcode +: 1
seconds: 60
"""

import os
import time
import traceback

import numpy as np

import torsh_runtime as tr


def wait_for(path, seconds):
    deadline = time.monotonic() + seconds
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {path} after {seconds} s: is the storage server down?")
        time.sleep(0.02)


def write_manifest(path):
    splits = {"train": 900, "test": 100}
    ratio = splits["train"] / splits["validation"]
    with open(path, "w") as f:
        f.write(str(ratio))


def main():
    tr.init_process_group(timeout=30)
    rank = tr.get_rank()
    if rank == 0:
        try:
            write_manifest("manifest.txt")
        except Exception:
            traceback.print_exc()
            time.sleep(2.5)  # flushes the log to the tracker
            raise
    else:
        wait_for("manifest.txt", 0.6 * rank)
    tr.all_reduce(np.ones(2))


main()
