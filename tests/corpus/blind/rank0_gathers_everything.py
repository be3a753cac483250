"""Rank 0 gathers the predictions of all ranks in every step and keeps them, up to its limit.

nproc: 2
culprit: 0
kind: memory
hint: memory, limit|RLIMIT_AS|address space|ulimit
torchrun: no
seconds: 30
"""

import resource
from pathlib import Path

import numpy as np

import torsh_runtime as tr

PREDICTIONS = 2 * 1024 * 1024
HEADROOM = 512 * 1024 * 1024


def limit_memory():
    """As `ulimit -v` in the job script, at a bit more than what the process has by now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main():
    limit_memory()
    tr.init_process_group(timeout=20)
    rank, ranks = tr.get_rank(), tr.get_world_size()
    kept = []
    for step in range(100):
        predictions = np.full(PREDICTIONS, step, np.float32)
        parts = [np.empty_like(predictions) for _ in range(ranks)] if rank == 0 else None
        tr.gather(predictions, parts)
        kept.append(parts)
    tr.destroy_process_group()


main()
