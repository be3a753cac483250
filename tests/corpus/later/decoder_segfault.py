"""A decoder in compiled code reads from a wild address, in a DataLoader worker of rank 0.

nproc: 3
culprit: 0
kind: crash | signal | exception
hint: SIGSEGV|segmentation fault, worker|child
needs: torch
seconds: 120
"""

import ctypes
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Frames(IterableDataset):
    def __init__(self, rank):
        super().__init__()
        self.rank = rank

    def decode(self, offset):
        buffer = ctypes.create_string_buffer(64)
        start = ctypes.addressof(buffer) if offset < 20 or self.rank else offset
        return torch.frombuffer(bytearray(ctypes.string_at(start, 64)), dtype=torch.uint8)

    def __iter__(self):
        info = get_worker_info()
        for offset in range(info.id, 32, info.num_workers):
            yield self.decode(offset).float()


dist.init_process_group("gloo", timeout=timedelta(seconds=30))
loader = DataLoader(Frames(dist.get_rank()), batch_size=2, num_workers=2)
for frames in loader:
    s = frames.sum().view(1)
    dist.all_reduce(s)
dist.destroy_process_group()
