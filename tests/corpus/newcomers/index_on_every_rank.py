"""Every rank builds the whole index for itself, and the job's memory is enough for one.

nproc: 2
culprit: 0 | 1
kind: memory
hint: out of memory|OOM|memory
needs: cgroup
seconds: 60
"""

import time

import numpy as np

import torsh_runtime as tr

VECTORS, WIDTH, PART = 100_000, 1024, 2_000


def build_index():
    """400 MiB, part by part."""
    parts = []
    for start in range(0, VECTORS, PART):
        part = np.full((PART, WIDTH), start, np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True) + 1
        parts.append(part)
        time.sleep(0.02)
    return parts


def main():
    tr.init_process_group()
    index = build_index()
    hits = np.array([sum(len(part) for part in index)])
    tr.all_reduce(hits)
    print(hits)
    tr.destroy_process_group()


main()
