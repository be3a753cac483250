"""Every rank pads its predictions to its own longest text, and then all are gathered.

nproc: 3
culprit: none
kind: mismatch
hint: all_?gather
needs: torch
seconds: 60
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence

LENGTHS = {0: [[3, 5], [9, 4]], 1: [[5, 2], [7, 7]], 2: [[5, 1], [12, 2]]}


def generate(lengths):
    return pad_sequence([torch.arange(n) for n in lengths], batch_first=True)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    kept = []
    for lengths in LENGTHS[dist.get_rank()]:
        predictions = generate(lengths)
        everybodys = [torch.empty_like(predictions) for _ in range(dist.get_world_size())]
        dist.all_gather(everybodys, predictions)
        kept.append(torch.cat(everybodys))
    dist.barrier()
    if dist.get_rank() == 0:
        print(len(kept), "batches evaluated")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
