"""The copy of the data on node 1 is incomplete, so its ranks run out of batches first.

nproc: 2
nnodes: 2
culprit: 2 3
kind: early_exit | missing
hint: all_?reduce|ranks 2|node 1|rank 2|rank 3
needs: torch
seconds: 90
"""

import os
import pathlib
from datetime import timedelta

import torch
import torch.distributed as dist


def rsync():
    """Each node has its own disk; here they are folders."""
    node, local = os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"]
    folder = pathlib.Path(f"node{node}-worker{local}")
    folder.mkdir(exist_ok=True)
    for shard in range(8 if node == "0" else 5):
        torch.save(torch.randn(4, 8), folder / f"{shard}.pt")
    return folder


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    for shard in sorted(rsync().glob("*.pt")):
        model(torch.load(shard)).sum().backward()
    del model
    print(f"rank {dist.get_rank()} is done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
