"""Processes of the second node may open few files, and each of its ranks wants one a shard.

nnodes: 2
nproc: 2
culprit: node 1  # or its ranks
kind: limit | exception
hint: OSError|too many open files|EMFILE
needs: torch
seconds: 60
"""

import os
import resource
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    if os.environ["GROUP_RANK"] == "1":  # its limits.conf is that of a fresh installation
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    folder = Path(f"shards{rank}")
    folder.mkdir()
    shards = []
    for i in range(200):
        path = folder / f"{i:05d}.bin"
        path.write_bytes(bytes(64))
        shards.append(path.open("rb"))
    print(f"[{rank}] {len(shards)} shards are open", flush=True)
    count = torch.tensor(len(shards))
    dist.all_reduce(count)


main()
