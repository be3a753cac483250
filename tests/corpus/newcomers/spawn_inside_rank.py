"""Rank 0 spawns processes that build its index, and one of them finds a document without a title.

nproc: 2
culprit: 0
kind: exception
hint: rank 0
needs: torch
seconds: 90
"""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

DOCUMENTS = [{"title": "a"}, {"title": "b"}, {"titel": "c"}, {"title": "d"}]


def index_part(part, parts):
    torch.set_num_threads(1)
    for number, document in enumerate(DOCUMENTS):
        if number % parts == part:
            document["title"].encode()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    if dist.get_rank() == 0:
        mp.spawn(index_part, args=(2,), nprocs=2)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
