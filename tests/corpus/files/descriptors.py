"""Rank 1 never closes its shards, and runs out of descriptors.

culprit: 1
kind: limit
hint: open files|descriptors, ulimit -n|nofile|limit
"""

import os
import resource
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    if os.environ["RANK"] == "1":
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    shard = Path(f"shard-{os.environ['RANK']}")
    shard.write_text("0 1 2 3")
    readers = []
    for _ in range(200):
        readers.append(shard.open())
        tr.all_reduce(np.array([len(readers[-1].read(4))]))


main()
